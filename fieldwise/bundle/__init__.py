"""The folder one predicts from, and the one path from raw rows to probabilities."""
