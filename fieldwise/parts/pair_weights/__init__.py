"""Explicit weights of pairs of categories (Poly-2)."""
