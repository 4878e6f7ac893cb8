"""bytes -> a checked, frozen Model, or ModelError. Knows the file format, not what operators mean."""
