"""What was seen before, as fields: counts, positives, rates, each row at its own point in time."""
