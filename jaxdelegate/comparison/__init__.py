"""Compares a delegate with a reference, and finds the operators that are wrong."""
