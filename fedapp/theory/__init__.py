"""Theorems as experiments: what each predicts, what the runs of its preset show, and whether that agrees.

A theorem's runs are the sweep `experiments/theory/<name>.toml`; its function, in the module of its paper,
reads or plays them and returns findings, each with its tolerance, and panels to draw. Those in `within` compute the
theorem's constants, take an admissible step size, and compare with the explicit bound. Theorems bound errors from
above: where one says O(1/T), a slope of -1 or steeper on logarithmic axes agrees. A run that ended early,
because its model was no longer finite, counts as infinitely far away from then on.
"""

from fedapp.theory import downlink, drift, fedcet, fedcomgate, fedpaq, within

THEOREMS = within.THEOREMS | fedpaq.THEOREMS | fedcomgate.THEOREMS | fedcet.THEOREMS
THEOREMS |= drift.THEOREMS | downlink.THEOREMS
