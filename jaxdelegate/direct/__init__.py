"""Programs on a CPU, called without XLA's runtime."""
