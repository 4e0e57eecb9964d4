"""Networks as users bring them, and those that cannot be trained."""
