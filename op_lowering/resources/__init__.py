"""Resource variables and hash tables."""
