"""The server side of each algorithm; `clients` holds the other half under the same names."""
