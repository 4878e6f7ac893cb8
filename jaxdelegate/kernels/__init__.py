"""This package's own CPU kernels, in C++, and their registration with XLA. They may be absent."""
