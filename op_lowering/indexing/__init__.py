"""Gather, scatter and operators that work with indices."""
