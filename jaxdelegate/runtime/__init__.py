"""Runs one subgraph: which nodes a delegate takes, its execution plan, its tensors. Knows no XLA."""
