"""A partition -> one pure JAX function. Independent of the device and of the interpreter."""
