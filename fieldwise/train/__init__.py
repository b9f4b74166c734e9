"""Training: the loop, its steps, run folders, checkpoints, workers, trees, blends."""
