"""jaxlib's PJRT client: loads and runs executables, with jax and without importing it."""
