"""Comparisons, logic and selection."""
