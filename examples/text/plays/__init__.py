"""The next character of a play, for fedapp."""
