"""Runs one subgraph: who takes which nodes, its execution plan, its tensors. Knows no XLA."""
