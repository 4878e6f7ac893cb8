"""A JAX function -> an executable, compiled ahead of time by XLA."""
