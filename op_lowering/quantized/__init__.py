"""Integer kernels of the categories of builtin/, and what integer kernels share."""
