"""Command-line tools: absl flags and printing; what they do lives elsewhere."""
