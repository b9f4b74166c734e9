"""The sum of all pairs' inner products (FM)."""
