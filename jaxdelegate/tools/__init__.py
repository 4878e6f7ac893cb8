"""Command-line tools: flags and printing; other packages do the work."""
