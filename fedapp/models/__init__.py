"""Networks, their flat parameters, and how these divide into tensors, layers and blocks."""
