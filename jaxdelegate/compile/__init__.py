"""Partition, options, device -> Program: one for everyone in the process who runs that graph."""
