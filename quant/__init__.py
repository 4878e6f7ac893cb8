"""Numbers: scales, zero points, fixed point, packing. The jax_* files are the numpy ones' twins."""
