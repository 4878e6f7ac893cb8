"""Bundles of models, tokenizers and metadata: `.litertlm` and ZIP archives such as `.task`."""
