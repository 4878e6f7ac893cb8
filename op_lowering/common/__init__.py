"""What rules of several categories share."""
