from tests.follow.days import runs

__all__ = ["runs"]
