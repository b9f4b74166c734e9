"""Whether a `prepare` that was killed may be gone on with: the same files, unchanged, and the same settings."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path

from fieldwise import __version__
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.plan import Plan

# What is left behind is only for those who would leave the same: raised with the layout of staged or encoded
# files, and with the draw of the parts.
FORMAT = 4


def stamp_of(plan: Plan, in_shards: bool = False) -> str:
    """Names, sizes and times of the files, and all that decides what becomes of their rows; nothing without files."""
    if plan.inputs is None:
        return ""
    found = [(path, path.stat()) for path in plan.inputs.files]
    files = [[str(path.absolute()), state.st_size, state.st_mtime_ns] for path, state in found]
    schema = plan.given.to_toml() if plan.given else ""
    settings = [plan.label, schema, plan.parting, plan.weight, sorted(plan.drop), plan.keep_negatives, plan.past]
    settings += [plan.gbdt_leaves, plan.keep_rows, plan.values, plan.sequences, plan.position, plan.expire_after]
    settings += [in_shards] if in_shards else []
    known = _digest(plan.known) if plan.known else ""
    return json.dumps([FORMAT, __version__, files, plan.inputs.reading, [repr(one) for one in settings], known])


def _digest(encoder: Encoder) -> str:
    """A digest of an encoder: of the files that it is saved in."""
    digest = hashlib.blake2b(digest_size=16)
    with tempfile.TemporaryDirectory() as folder:
        encoder.save(Path(folder))
        for file in sorted(Path(folder).iterdir()):
            digest.update(file.read_bytes())
    return digest.hexdigest()
