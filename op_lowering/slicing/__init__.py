"""Slices and splits."""
