"""Convolutions: plain, depthwise, 3D and transposed."""
