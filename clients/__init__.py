"""The client side of each algorithm; `strategies` holds the other half under the same names."""
