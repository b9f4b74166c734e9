"""Products of vectors that each field has for each other (FFM)."""
