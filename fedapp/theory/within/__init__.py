"""Theorems within their hypotheses: constants known exactly, an admissible step size, the explicit bound beside the curve."""

from fedapp.theory.within import fedbcgd, fedcet, fedcom, fedpaq, gradma, tables

THEOREMS = fedcom.THEOREMS | tables.THEOREMS | fedpaq.THEOREMS | fedcet.THEOREMS
THEOREMS |= gradma.THEOREMS | fedbcgd.THEOREMS
