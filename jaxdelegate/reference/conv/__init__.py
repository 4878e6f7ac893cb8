"""Convolutions: float, quantized and dynamic range; plain, depthwise and transposed."""
