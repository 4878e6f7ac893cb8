"""Shared by tools: inputs, statistics, tolerances."""
