"""One TFLite operator -> one JAX function. Importing this package does not import jax; the rule files do."""
