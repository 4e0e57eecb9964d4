"""Loops over single numbers, which NumPy cannot do: compiled by numba when they are first called, and cached on disk.

Modules here import numba, which takes half a second: import them where they are used.
"""
