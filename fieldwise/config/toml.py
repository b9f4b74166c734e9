"""Writing TOML; the standard library only reads it."""

from __future__ import annotations

import json
from typing import Any


def dumps(values: dict[str, Any]) -> str:
    """Plain values first, then tables, then lists of tables.

    >>> print(dumps({"a": 1, "b": {"c": [1.5, "x"]}, "d": [{"e": True}]}), end="")
    a = 1
    <BLANKLINE>
    [b]
    c = [1.5, "x"]
    <BLANKLINE>
    [[d]]
    e = true
    """
    plain = {k: v for k, v in values.items() if not _is_table(v) and not _is_tables(v)}
    lines = [f"{_key(k)} = {_value(v)}" for k, v in plain.items()]
    for key, value in values.items():
        if _is_table(value):
            lines += ["", f"[{_key(key)}]", *(f"{_key(k)} = {_value(v)}" for k, v in value.items())]
        elif _is_tables(value):
            for table in value:
                lines += ["", f"[[{_key(key)}]]", *(f"{_key(k)} = {_value(v)}" for k, v in table.items())]
    return "\n".join(lines).lstrip("\n") + "\n"


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, str):
        # JSON strings are TOML strings, except that TOML requires DEL to be escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return repr(value)
