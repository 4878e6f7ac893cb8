"""Saves a model: files with other weights, scales and types, and files of parts."""
