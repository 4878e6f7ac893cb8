"""Lookups in tables: sparse embeddings, hash tables in tensors, LSH projections."""
