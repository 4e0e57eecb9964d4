"""EF21 for fedapp."""
