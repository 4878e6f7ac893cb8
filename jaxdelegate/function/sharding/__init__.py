"""A model over the devices of a mesh: batches and weights, divided by axes."""
