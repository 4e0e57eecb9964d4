"""Theorems within their hypotheses: constants known exactly, an admissible step size, the explicit bound beside the curve."""

from fedapp.theory.within import fedcom

THEOREMS = fedcom.THEOREMS
