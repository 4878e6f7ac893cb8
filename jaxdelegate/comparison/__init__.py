"""A delegate's results against a reference: how far off, since which operator, in which range."""
