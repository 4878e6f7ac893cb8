"""Compiled programs on disk: their key, their files, and what keeps them safe."""
