"""Ranks operators of a float network by the simulated error of quantizing each of them alone."""
