"""Sounds in prompts: files to samples, samples to spectra, spectra to embeddings."""
