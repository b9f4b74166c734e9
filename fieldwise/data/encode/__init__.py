"""The steps of prepare: stage, split, fit, encode."""
