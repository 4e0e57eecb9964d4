"""An algorithm from outside: two files, as a user's own package would have them."""
