"""Training with quantization: weights on their grids, and scales that are parameters."""
