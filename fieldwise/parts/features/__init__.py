"""Vectors as they are, several interactions side by side, a norm on them."""
