"""A JAX function -> an executable and its resident weights, compiled ahead of time by XLA."""
