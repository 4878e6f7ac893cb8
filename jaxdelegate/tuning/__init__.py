"""Measures the algorithms that can run an operator on the device, and chooses the fastest."""
