"""The folder one predicts from: weights, config, schema, encoder, calibration, metrics; no pickle in it."""

from __future__ import annotations

import hashlib
import json
import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

import fieldwise
from fieldwise.calibration import Calibration
from fieldwise.config import Config, config_from
from fieldwise.data.encoder import Encoder
from fieldwise.data.schema import Layout, Schema
from fieldwise.errors import BundleError
from fieldwise.files import whole_folder
from fieldwise.models import build
from fieldwise.nn.model import Model
from fieldwise.scoring import Scorer
from fieldwise.trees import Trees

FORMAT = 1


@dataclass(frozen=True)
class Bundle:
    """What a bundle folder holds, opened."""

    path: Path
    config: Config
    schema: Schema
    encoder: Encoder
    model: Scorer
    calibration: Calibration
    metrics: dict[str, Any]


def write(
    out: Path, config: Config, data: Path, model: Scorer, calibration: Calibration, metrics: dict[str, Any]
) -> None:
    """Writes the bundle of a trained model; `data` is the prepared folder with schema and encoder."""
    with whole_folder(out, "bundle.json", force=True) as work:
        model.save(work / model.file)
        shutil.copyfile(data / "schema.toml", work / "schema.toml")
        shutil.copytree(data / "encoder", work / "encoder")
        (work / "config.toml").write_text(config.to_toml(), encoding="utf-8")
        _write_json(work / "calibration.json", calibration.to_json())
        _write_json(work / "metrics.json", metrics)
        files = sorted(path for path in work.rglob("*") if path.is_file())
        facts = {
            "format": FORMAT,
            "fieldwise": fieldwise.__version__,
            "torch": str(torch.__version__),
            "files": {path.relative_to(work).as_posix(): _digest(path) for path in files},
        }
        _write_json(work / "bundle.json", facts)


def locate(path: Path) -> Path:
    """The bundle folder of a run or a bundle."""
    for candidate in (path, path / "bundle"):
        if (candidate / "bundle.json").is_file():
            return candidate
    if (path / "config.toml").is_file():
        raise BundleError(f"the run has not finished; go on with `fieldwise train ... --resume` ({path})")
    raise BundleError(f"expected a run or a bundle folder, found neither config.toml nor bundle.json ({path})")


def load(path: Path) -> Bundle:
    """Opens the bundle of a run or a bundle folder, after checking that every file is whole."""
    folder = _checked(path)
    try:
        config = config_from(tomllib.loads((folder / "config.toml").read_text(encoding="utf-8")), str(folder))
        schema = Schema.load(folder / "schema.toml")
        encoder = Encoder.load(folder / "encoder", schema)
        model = build_model(config, encoder.layout)
        model.load(folder / model.file)
    except (OSError, tomllib.TOMLDecodeError, SafetensorError, RuntimeError, KeyError) as error:
        raise BundleError(f"the bundle is damaged: {str(error).splitlines()[0]} ({folder})") from None
    calibration = Calibration.from_json(_read_json(folder / "calibration.json"))
    return Bundle(folder, config, schema, encoder, model, calibration, _read_json(folder / "metrics.json"))


def load_encoder(path: Path) -> Encoder:
    """The encoder of a run or a bundle folder, without its model."""
    folder = _checked(path)
    return Encoder.load(folder / "encoder", Schema.load(folder / "schema.toml"))


def _checked(path: Path) -> Path:
    """The bundle folder of a run or a bundle, every file of it whole."""
    folder = locate(path)
    facts = _read_json(folder / "bundle.json")
    if facts.get("format") != FORMAT:
        found = facts.get("format")
        raise BundleError(
            f"expected a bundle of format {FORMAT}, found {found}; use the version that wrote it ({folder})"
        )
    for name, digest in facts.get("files", {}).items():
        file = folder / name
        if not file.is_file() or _digest(file) != digest:
            state = "changed or cut off" if file.is_file() else "missing"
            raise BundleError(f"the bundle's {name} is {state}; write it again or copy it anew ({folder})")
    return folder


def build_model(config: Config, layout: Layout) -> Model | Trees:
    """The model that a config describes, over these fields."""
    return build(config.model, layout, config.options)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1), encoding="utf-8")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BundleError(f"cannot read {path.name}: {error} ({path.parent})") from None
    if not isinstance(values, dict):
        raise BundleError(f"expected an object in {path.name}, found a {type(values).__name__} ({path.parent})")
    return values
