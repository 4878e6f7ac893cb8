"""Fourier transforms and audio features."""
