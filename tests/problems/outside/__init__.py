"""Problems as users bring them."""
