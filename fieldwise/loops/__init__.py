"""Building blocks of compiled loops and GPU kernels: vector registers, tiles, threads. Formulas are in parts/."""
