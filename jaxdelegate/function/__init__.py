"""A .tflite as a pure JAX function: jit, vmap, grad, shard or export it."""
