"""A bundle -> a folder to serve from: the bundle without torch's weights, and the network in ONNX."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fieldwise.bundle import bundle
from fieldwise.bundle.card import FILE as CARD
from fieldwise.bundle.members import Blend
from fieldwise.config.documents import parsed, read_json
from fieldwise.config.errors import BundleError, ConfigError, unknown
from fieldwise.config.files import whole_folder
from fieldwise.data.encode import lifetimes
from fieldwise.export import network, quantize
from fieldwise.graphs import plain_parts
from fieldwise.graphs.graph import Graph, load_onnx

# The network's folder in a bundle, the file of facts about it, and the network as one ONNX file.
FOLDER, FACTS, MODEL = "online", "online.json", "model.onnx"
WEIGHTS = "weights.safetensors"
FORMAT = 1


def export(source: Path, out: Path, tables: str = "fp32", force: bool = False) -> None:
    """Writes the folder to serve from; `tables` is the number format of the embedding tables."""
    if tables not in quantize.KINDS:
        raise ConfigError(unknown("kind of tables", tables, quantize.KINDS))
    folder = bundle.checked(source)
    if "serving" in read_json(folder / "bundle.json"):
        raise BundleError(f"the folder is exported already; export the run or bundle that it came from ({folder})")
    with whole_folder(out, "bundle.json", force) as work:
        _export(folder, work, tables)


def _export(folder: Path, work: Path, tables: str) -> None:
    work.mkdir(exist_ok=True)
    facts, files = read_json(folder / "bundle.json"), bundle.digests(folder)
    # What is remembered of values is for those who continue, not for a server.
    files = {name: digest for name, digest in files.items() if name != f"encoder/{lifetimes.FILE}"}
    blend = (folder / Blend.file).is_file()
    for name in files:
        if name != WEIGHTS and not (blend and Path(name).parts[0] == bundle.MEMBERS):
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, work / name)
    if (folder / CARD).is_file():
        shutil.copyfile(folder / CARD, work / CARD)
    if blend:
        (work / bundle.MEMBERS).mkdir()
        for member in bundle.member_folders(folder):
            name = member.relative_to(folder).as_posix()
            _export(bundle.checked(member), work / name, tables)
            files[f"{name}/bundle.json"] = bundle.digest_of(work / name / "bundle.json")
    if (folder / WEIGHTS).is_file():
        write_network(folder, work / FOLDER, tables)
    facts["files"] = {name: digest for name, digest in files.items() if name != WEIGHTS}
    bundle.write_json(work / "bundle.json", facts | {"serving": tables})


def write_network(folder: Path, out: Path, tables: str = "fp32") -> None:
    """Writes the network of a bundle: its parts, and model.onnx, which reads its tables from the parts' file."""
    needs_torch(folder)
    from fieldwise.export import convert
    from fieldwise.nn.model import Model

    opened = bundle.load(folder)
    assert isinstance(opened.model, Model)
    described = convert.network(opened.model, opened.own_encoder.layout, tables)
    with whole_folder(out, FACTS, force=True) as work:
        plain_parts.save(described, work)
        places = plain_parts.places(work)

        def stored(graph: Graph, name: str, array: Any) -> str:
            return graph.stored(name, array, plain_parts.FILES[1], places[name])

        load_onnx().save(network.graph_of(described, stored), work / MODEL)
        files = {file.name: bundle.digest_of(file) for file in sorted(work.iterdir())}
        source = bundle.digests(folder)[WEIGHTS]
        bundle.write_json(work / FACTS, {"format": FORMAT, "tables": tables, "source": source, "files": files})


def needs_torch(folder: Path) -> None:
    """Raises BundleError if torch, which exporting needs, is not installed."""
    if find_spec("torch") is None:
        way_out = f"run `fieldwise export {folder} --onnx --out DIR` where it is"
        raise BundleError(
            f"the bundle has no ONNX network, and making one needs torch, which is not installed; {way_out} ({folder})"
        )


def network_folder(folder: Path) -> Path:
    """The folder of a bundle's network, checked. The first use writes it into the bundle or, if that is read-only, into
    a temporary folder."""
    source = bundle.digests(folder).get(WEIGHTS)
    found = folder / FOLDER
    if _is_intact(found, source):
        return found
    if source is None:
        raise BundleError(f"the exported network is missing or damaged; export it again ({found})")
    if not os.access(folder, os.W_OK):
        temporary = Path(tempfile.mkdtemp(prefix="fieldwise-"))
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        found = temporary / FOLDER
    _export_in_child(folder, found)
    return found


def _export_in_child(folder: Path, out: Path) -> None:
    """Exports in a child process, which gives torch's memory back when it ends."""
    needs_torch(folder)
    code = "import sys; from pathlib import Path; from fieldwise.export.export import write_network; "
    code += "write_network(Path(sys.argv[1]), Path(sys.argv[2]))"
    done = subprocess.run([sys.executable, "-c", code, folder, out], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise BundleError(f"the network could not be exported: {reason} ({folder})")


def _is_intact(found: Path, source: str | None) -> bool:
    """Whether the folder has a network of these weights, with every file intact."""
    try:
        facts = parsed(found / FACTS)
    except (OSError, ValueError):
        return False
    files = facts.get("files")
    if facts.get("format") != FORMAT or source not in (None, facts.get("source")) or not isinstance(files, dict):
        return False
    if (
        not {*plain_parts.FILES} <= files.keys() <= {*plain_parts.FILES, MODEL}
        or facts.get("tables") not in quantize.KINDS
    ):
        return False
    return all((found / name).is_file() and bundle.digest_of(found / name) == d for name, d in files.items())
