"""Pooling in two and three dimensions, with and without indices."""
