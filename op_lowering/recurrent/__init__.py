"""RNN, SVDF and the LSTMs."""
