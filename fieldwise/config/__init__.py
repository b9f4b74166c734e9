"""Settings of a run, options of a model, errors, and files that appear whole or not at all."""
