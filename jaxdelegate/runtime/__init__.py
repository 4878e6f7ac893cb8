"""Runs the plan of a subgraph and holds its tensors. Does not depend on XLA."""
