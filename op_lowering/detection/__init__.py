"""Box decoding and non-maximum suppression."""
