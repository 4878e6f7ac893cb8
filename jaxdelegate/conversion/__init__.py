"""A JAX function becomes a .tflite file: `jaxdelegate.from_jax` and `jaxdelegate.save_jax`."""
