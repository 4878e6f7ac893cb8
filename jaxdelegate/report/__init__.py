"""What happened, as records that print as tables."""
