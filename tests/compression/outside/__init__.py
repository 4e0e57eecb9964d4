"""Compressors as users bring them."""
