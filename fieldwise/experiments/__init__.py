"""Many runs: comparisons, searches, the demo, a simulated A/B test."""
