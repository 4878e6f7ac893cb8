"""Operators that call subgraphs: IF, WHILE, CALL, composites."""
