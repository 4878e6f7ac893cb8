"""RNN, SVDF and the LSTMs: float, quantized and dynamic range."""
