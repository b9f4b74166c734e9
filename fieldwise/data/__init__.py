"""From raw rows to ids on disk."""
