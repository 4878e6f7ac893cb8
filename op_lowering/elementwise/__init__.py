"""Arithmetic on elements, with broadcasting."""
