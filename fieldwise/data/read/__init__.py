"""Files as they come -> chunks of raw columns, and the rows that cannot be used."""
