"""Reductions of segments."""
