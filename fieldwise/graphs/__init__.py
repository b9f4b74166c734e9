"""What ONNX graphs are written with: nodes, plain parts, the two sides of a ranking. No torch."""
