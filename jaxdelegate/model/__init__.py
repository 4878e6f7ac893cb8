"""Reads and writes model files: bytes -> a checked, frozen Model, or ModelError."""
