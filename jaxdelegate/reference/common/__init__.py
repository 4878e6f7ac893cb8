"""What kernels of several categories share."""
