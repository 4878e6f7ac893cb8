"""Images and sounds in prompts: encoded once, batched, and written to places without tokens."""
