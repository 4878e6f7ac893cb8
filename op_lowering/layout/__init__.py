"""Operators that move elements: transposition, concatenation, space and depth."""
