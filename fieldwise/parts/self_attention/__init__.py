"""Fields that attend to each other (AutoInt)."""
