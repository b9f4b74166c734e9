"""Products of all pairs behind a matrix, and fields weighted by the row (FiBiNET)."""
