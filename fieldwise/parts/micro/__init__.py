"""One small network for each pair (NIFM, PIN)."""
