"""Measures latency, memory, energy and operator times of a model; tools print them."""
