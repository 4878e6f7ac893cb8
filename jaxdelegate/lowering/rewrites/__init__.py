"""Replaces patterns of operators by fewer operators that compute the same."""
