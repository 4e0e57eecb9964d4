"""A network for a table, for fedapp."""
