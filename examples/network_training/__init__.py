"""What `train_networks.py` trains, and how: architectures, samples with losses, quantization."""
