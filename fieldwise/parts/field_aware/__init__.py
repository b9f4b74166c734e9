"""Products of the vectors that each field has for every other field (FFM)."""
