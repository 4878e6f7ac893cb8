"""One TFLite operator -> one JAX function. Importing the package imports no jax; rules do."""
