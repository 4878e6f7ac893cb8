"""Where quantization hurts: each operator of a float network quantized alone, in simulation."""
