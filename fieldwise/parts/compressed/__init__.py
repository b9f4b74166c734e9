"""Products of each place with each field, compressed layer after layer (xDeepFM)."""
