"""StableHLO operators, as the StableHLO specification defines them."""
