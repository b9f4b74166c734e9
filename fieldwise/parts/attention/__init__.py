"""All pairs, weighted by attention (AFM)."""
