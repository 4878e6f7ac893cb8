"""Figures of the JSON files that jaxdelegate's tools write."""
