"""Stacked layers of an FM and of compressed vectors (Wukong)."""
