"""Latency, memory, energy and operator times of a model; tools print what this room measures."""
