"""Operators whose tensors are floats, or any numbers that they only move: one file a category."""
