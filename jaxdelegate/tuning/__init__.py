"""Times the algorithms that an operator could use on the device, and keeps the fastest."""
