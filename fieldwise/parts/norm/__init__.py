"""Layer norm, and the fused norm of all sub-networks."""
