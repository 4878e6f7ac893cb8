"""Models behind HTTP and gRPC; the two protocols are in v2/ and openai/."""
