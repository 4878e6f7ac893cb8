"""Convolutions: float, quantized and dynamic range; by XLA and by CPU kernels of our own."""
