"""Reductions, ARG_MAX, ARG_MIN and CUMSUM."""
