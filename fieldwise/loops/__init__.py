"""What compiled loops and GPU kernels are written with: vector registers, tiles, threads. Formulas are in parts/."""
