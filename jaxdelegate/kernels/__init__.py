"""This package's own CPU kernels, in C++, and how XLA comes to know them. They may be absent."""
