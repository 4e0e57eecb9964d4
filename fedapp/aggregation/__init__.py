"""Aggregation: `rules` are the ways to make one vector of many, `choice` picks one for a config, `sums` add up."""

from fedapp.aggregation.choice import (
    Aggregator,
    PlainMean,
    advice,
    aggregator_of,
    buffer_rule_of,
    check,
    least_updates,
    total,
)
from fedapp.aggregation.sums import BUFFERS, PER_STEP, Places, Summed, Sums

__all__ = [
    "BUFFERS",
    "PER_STEP",
    "Aggregator",
    "Places",
    "PlainMean",
    "Summed",
    "Sums",
    "advice",
    "aggregator_of",
    "buffer_rule_of",
    "check",
    "least_updates",
    "total",
]
