"""Operators that only rewrites make: attention, layer norm, convolutions with an epilogue."""
