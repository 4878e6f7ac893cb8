"""Patterns of operators -> fewer operators that compute the same."""
