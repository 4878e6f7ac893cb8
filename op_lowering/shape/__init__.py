"""Shapes: RESHAPE, SHAPE, BROADCAST_TO, FILL, RANGE and the like."""
