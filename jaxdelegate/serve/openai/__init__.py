"""The API of OpenAI, with continuous batching."""
