"""Many runs: comparisons, searches, the demo, a simulated A/B test."""

# Runs of each model in a comparison, unless the user says otherwise.
SEEDS = 3
