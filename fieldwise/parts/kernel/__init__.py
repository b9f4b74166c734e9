"""Kernel products of all pairs (KFM, KPNN)."""
