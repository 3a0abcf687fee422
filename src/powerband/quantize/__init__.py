"""Quantise a model with well-kept tools, after asking whether the engine and the card can run what comes out."""
