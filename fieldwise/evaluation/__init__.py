"""Metrics of models, and explanations of what they learned."""
