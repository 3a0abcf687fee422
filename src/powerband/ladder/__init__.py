"""The ladder: from the naive service to a tuned engine, one measured change a rung."""
