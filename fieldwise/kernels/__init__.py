"""Compiled kernels, each beside the plain PyTorch that it must equal."""
