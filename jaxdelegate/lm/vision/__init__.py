"""Images in prompts: files to tensors, tensors to embeddings, embeddings to places of a prompt."""
