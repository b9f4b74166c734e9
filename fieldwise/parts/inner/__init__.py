"""Inner products of all pairs (IPNN)."""
