"""DENSIFY."""
