"""Runs the thunks of programs on a CPU without XLA's runtime: direct calls."""
