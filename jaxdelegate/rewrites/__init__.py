"""Rewrites of a partition before it is lowered; `table.py` lists them."""
