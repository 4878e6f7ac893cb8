"""NumericVerify and Hadamard rotations, operators of TFLite's tools."""
