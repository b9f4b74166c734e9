"""Layers whose halves multiply each other (FinalNet)."""
