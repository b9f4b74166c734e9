"""The event log, the router of an A/B test, and the analysis of its arms."""
