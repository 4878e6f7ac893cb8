"""For `train_networks.py`: architectures, samples, losses, quantization."""
