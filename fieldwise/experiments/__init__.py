"""Many runs: comparisons, searches, the demo. What follows is read without torch."""

# Runs of each model in a comparison, unless the user says otherwise.
SEEDS = 3
