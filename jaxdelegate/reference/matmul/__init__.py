"""Matrix products: float, quantized and dynamic range."""
