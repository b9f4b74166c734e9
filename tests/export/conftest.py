"""Bundles of any model, as the tests of serving have them."""

from tests.serving.conftest import everything

__all__ = ["everything"]
