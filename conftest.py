"""Doctests are collected from every module; those that need what this machine has not are left out."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("triton") else ["fieldwise/*triton*.py"]
