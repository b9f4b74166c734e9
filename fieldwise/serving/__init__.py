"""A bundle in service: exported to ONNX, scored without torch, ranked, explained, and put behind HTTP."""
