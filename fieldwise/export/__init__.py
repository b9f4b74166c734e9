"""A trained network -> a folder to serve from, in ONNX."""
