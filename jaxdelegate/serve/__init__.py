"""Models behind HTTP and gRPC: the Open Inference Protocol v2, with dynamic batching."""
