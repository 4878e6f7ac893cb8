"""A delegate for TensorFlow Lite models on JAX/XLA."""
