"""Flattened vectors, several interactions side by side, and a norm on features."""
