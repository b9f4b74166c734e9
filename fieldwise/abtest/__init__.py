"""The event log, the router of an A/B test, and what the log says about its arms."""
