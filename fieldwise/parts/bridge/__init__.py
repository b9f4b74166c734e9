"""Crosses and layers side by side that meet after each (EDCN)."""
