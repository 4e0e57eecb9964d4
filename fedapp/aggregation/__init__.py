"""Aggregation: `rules` are the ways to make one vector of many, `choice` picks one for a config."""

from fedapp.aggregation.choice import (
    Aggregator,
    advice,
    aggregator_of,
    buffer_rule_of,
    check,
    least_updates,
    total,
)

__all__ = [
    "Aggregator",
    "advice",
    "aggregator_of",
    "buffer_rule_of",
    "check",
    "least_updates",
    "total",
]
