"""What an operator's record consists of: options, enums, C struct, cost, traits. No jax."""
