"""Operators that only rewrites make: attention, normalization, convolutions with an epilogue."""
