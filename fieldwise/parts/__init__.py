"""The parts of models, a folder for each: its formula, compiled loop, Triton kernel and ONNX form."""
