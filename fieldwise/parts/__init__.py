"""What models are made of, a folder each: the formula, its compiled loop, its Triton kernel, its ONNX form."""
