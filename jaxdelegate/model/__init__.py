"""bytes -> a checked, frozen Model, or ModelError. Knows the file format, no operator."""
