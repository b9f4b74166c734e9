"""Building blocks of ONNX graphs: nodes, plain parts, the two sides of a ranking. No torch."""
