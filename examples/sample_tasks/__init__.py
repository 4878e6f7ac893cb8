"""Sample tasks of TFLite's GPU tutorials: trained networks, generated inputs, drawn results."""
