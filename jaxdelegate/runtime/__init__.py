"""Runs the plan of a subgraph and holds its tensors, or runs a stored program. Needs no XLA."""
