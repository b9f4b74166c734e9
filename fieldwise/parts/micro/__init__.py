"""A small network of its own for each pair (NIFM, PIN)."""
