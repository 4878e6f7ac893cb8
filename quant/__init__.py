"""Numbers: scales, zero points, fixed point and packing. numpy here; the jax twins are in the jax_* files."""
