"""Convolutions along the fields (CCPM)."""
