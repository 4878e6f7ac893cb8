"""Softmax and normalizations along an axis."""
