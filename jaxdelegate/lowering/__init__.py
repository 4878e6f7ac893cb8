"""A partition -> one pure JAX function. Knows no device and no host."""
