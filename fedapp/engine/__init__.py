"""Our engines, which carry messages from the ServerApp to the ClientApp."""

from fedapp.engine.inline import InlineGrid

__all__ = ["InlineGrid"]
