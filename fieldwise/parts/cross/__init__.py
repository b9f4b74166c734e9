"""Crosses of all numbers of a row with its first ones (DCNv2, GDCN)."""
