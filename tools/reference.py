"""Writes the pages of the site that are read from the code: `python tools/reference.py build/reference`.

Commands come from the command line, settings from their dataclasses, options of models from the registry, HTTP paths
from the server's OpenAPI description. Names of Python are left to mkdocstrings, which reads their docstrings.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def pages() -> dict[str, str]:
    """The text of each page by its name."""
    made = {"python": python(), "commands": commands(), "settings": settings(), "models": models(), "http": http()}
    return {f"{name}.md": text for name, text in made.items()}


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    lines = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in (head, *rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def python() -> str:
    import fieldwise

    parts = ["# Python\n\nEvery public name: `from fieldwise import ...`.\n"]
    for name in fieldwise.__all__:
        # A kind of field is written by who extends fieldwise; who uses it calls Field alone.
        few = "    options:\n      members: false\n" if name == "Field" else ""
        parts.append(f"::: {getattr(fieldwise, name).__module__}.{name}\n{few}")
    return "\n".join(parts)


def commands() -> str:
    import typer.main

    from fieldwise import cli
    from fieldwise.commands.app import app

    for group in cli.GROUPS:
        importlib.import_module(f"fieldwise.commands.{group}")
    parts = ["# Commands\n\nEach has `--help`. `--debug` shows the traceback of an error.\n"]
    parts += [_command(name, command) for name, command in _commands("fieldwise", typer.main.get_command(app))]
    return "\n".join(parts)


def _commands(prefix: str, group: Any) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(f"{prefix} {name}", command)
        else:
            yield f"{prefix} {name}", command


def _command(name: str, command: Any) -> str:
    text, _, example = inspect.cleandoc(command.help or "").partition("Example: ")
    rows = []
    for one in command.params:
        if one.param_type_name == "argument":
            rows.append((f"`{one.name.upper()}`", "" if one.required else "optional", one.help or ""))
        elif one.name != "help":
            rows.append((f"`{', '.join(one.opts)}`", _default(one), one.help or ""))
    usage = f"```text\n{example.strip().strip('`')}\n```\n" if example else ""
    return f"## {name.removeprefix('fieldwise ')}\n\n{text.strip()}\n\n{usage}\n" + table(
        ("option", "default", "meaning"), rows
    )


def _default(option: Any) -> str:
    told, value = getattr(option, "show_default", None), option.default
    if isinstance(told, str):
        return told
    if getattr(option, "required", False):
        return "required"
    return "" if value is None or value is False or value == "" or callable(value) else f"`{value}`"


def settings() -> str:
    from fieldwise.config.settings import TrainSettings
    from fieldwise.data.kinds.kind import KINDS
    from fieldwise.data.schema import HistorySettings

    meanings = meanings_of_settings()
    by_meaning: dict[str, list[Any]] = {}
    for one in dataclasses.fields(TrainSettings):
        by_meaning.setdefault(meanings[one.name], []).append(one)
    rows = [
        (_joined(f"train.{one.name}" for one in alike), _joined(_toml(one.default) for one in alike), meaning)
        for meaning, alike in by_meaning.items()
    ]
    parts = [
        "# Settings\n\n## A run\n\n`[train]` of a recipe, or `--set train.NAME=VALUE`; `seed`, `device` and "
        "`model.name` stand beside them. Options of `[model]` are [each model's own](models.md).\n",
        table(("setting", "default", "meaning"), rows),
        "## Fields of a schema\n\n`[[field]]` of `schema.toml`, or `fieldwise.Field(NAME, KIND, SETTING=VALUE)`; what "
        "they mean: [Data](../data.md#kinds-of-fields).\n",
        table(
            ("kind", "setting", "default"),
            [
                (kind, f"`{one.name}`", f"`{_toml(one.default)}`")
                for kind, field in KINDS.items()
                for one in dataclasses.fields(field)
                if one.name != "name"
            ],
        ),
        "## History\n\n`[history]` of a schema, or `--history-set NAME=VALUE`; what they mean: "
        "[Data](../data.md#history).\n",
        table(
            ("setting", "default"),
            [(f"`{one.name}`", f"`{_toml(one.default)}`") for one in dataclasses.fields(HistorySettings)],
        ),
    ]
    return "\n".join(parts)


def meanings_of_settings() -> dict[str, str]:
    """What docs/training.md says of each setting, which has a row there, alone or with others."""
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z0-9_,; ]+) \| [^|]* \| (.*) \|$", page, re.MULTILINE)
    found = {}
    for names, text in rows:
        moved = re.sub(r"\]\(#", "](../training.md#", re.sub(r"\]\((?=[a-z])", "](../", text))
        found |= dict.fromkeys(re.split(r"[,;] ", names), moved)
    return found


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(f"`{text}`" for text in texts)


def _toml(value: Any) -> str:
    from fieldwise.config.toml import dumps

    return "" if value is dataclasses.MISSING else dumps({"x": value}).partition("= ")[2].strip()


def models() -> str:
    from fieldwise.models import describe, registry

    parts = [
        "# Options of models\n\n`[model]` of a recipe, or `--set model.NAME=VALUE`. What each is: "
        "[Which model](../choosing.md).\n"
    ]
    for name in registry():
        found = describe(name)
        parts.append(f"## {name}\n\n{found['description']}\n")
        if found["options"]:
            rows = [(f"`model.{key}`", f"`{_toml(value)}`") for key, value in found["options"].items()]
            parts.append(table(("option", "default"), rows))
    return "\n".join(parts)


def http() -> str:
    from fieldwise.serving.application import Application, Hooks, Limits

    service: Any = SimpleNamespace(columns=(), log=None)
    described = Application(service, "", Limits(), Hooks()).api.openapi()
    known = described["components"]["schemas"]
    parts = [
        "# HTTP\n\nWhat `fieldwise serve` answers. A running server has the same at `/docs`, with the fields of its "
        "models, and as OpenAPI at `/openapi.json`. How to use it: [Online](../online.md#the-server).\n"
    ]
    for path, methods in described["paths"].items():
        for method, told in methods.items():
            parts.append(f"## {method.upper()} {path}\n\n{told.get('description', '')}\n")
            body = told.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            asked = [*_properties(body), *map(_parameter, told.get("parameters", ()))]
            if asked:
                parts.append(table(("asked", "type", "default", "meaning"), asked))
            answer = told["responses"]["200"].get("content", {}).get("application/json", {}).get("schema", {})
            answered = _properties(known.get(answer.get("$ref", "").rpartition("/")[2], {}))
            if answered:
                parts.append(
                    table(("answered", "type", "meaning"), ((name, kind, note) for name, kind, _, note in answered))
                )
    refusals = {code: told["description"] for code, told in described["paths"]["/predict"]["post"]["responses"].items()}
    rows = [(code, text) for code, text in sorted(refusals.items()) if code != "200"]
    parts.append("## Refusals\n\nAn error is an object with `error`, one line.\n\n" + table(("status", "when"), rows))
    return "\n".join(parts)


def _properties(schema: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    required = schema.get("required", ())
    return [
        (f"`{name}`", _type(one), "required" if name in required else _shown(one), one.get("description", ""))
        for name, one in schema.get("properties", {}).items()
    ]


def _parameter(one: dict[str, Any]) -> tuple[str, str, str, str]:
    default = "required" if one["required"] else _shown(one["schema"])
    return f"`?{one['name']}=`", _type(one["schema"]), default, one.get("description", "")


def _shown(schema: dict[str, Any]) -> str:
    default = schema.get("default")
    return "" if default in (None, "") else f"`{str(default).lower()}`"


def _type(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(one) for one in schema["anyOf"]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    named = schema.get("$ref", "").rpartition("/")[2]
    return named or str(schema.get("type", "any"))


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (out / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
