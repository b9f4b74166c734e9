"""Loads and uses a bundle in a child process first, so files that crash a library do not crash the server."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import orjson

from fieldwise.bundle import bundle
from fieldwise.config.errors import BundleError, FieldwiseError
from fieldwise.serving.engine import Engine
from fieldwise.serving.row_coder import Row

# Exporting a large network takes minutes; anything longer than this hangs.
SECONDS = 900.0
# How far a ranked probability may be from that of the full row: well above float32's rounding, too small to matter.
CLOSE = 1e-4


def tried(path: Path) -> str:
    """Has a child process load and score a bundle; returns its version, or raises BundleError with the reason."""
    command = [sys.executable, "-m", "fieldwise.serving.trial", str(path)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise BundleError(f"the bundle was not loaded and scored within {SECONDS:g} seconds ({path})") from None
    said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    if done.returncode == 2:
        raise BundleError(said.removeprefix("error: "))
    if done.returncode:
        how = signal.Signals(-done.returncode).name if done.returncode < 0 else said[:300]
        raise BundleError(f"the bundle ended the process that tried it ({how}); the files are damaged ({path})")
    return done.stdout.split()[-1]


def score_once(engine: Engine) -> Row:
    """Scores a row of missing values and one of known values, and reads the model's facts; returns the second row.

    A bundle that cannot be used at all fails here, not at the first request.
    """
    known: Row = {field.name: field.examples[0] for field in engine.fields if field.examples}
    found = engine.predict([{}, known])
    if not (np.isfinite(found).all() and (found >= 0).all() and (found <= 1).all()):
        raise BundleError(f"a model gives probabilities, found {found.tolist()}")
    orjson.dumps(engine.model)
    return known


def use(engine: Engine) -> None:
    """Does everything that requests can ask of an engine once."""
    row = score_once(engine)
    names = [field.name for field in engine.fields]
    half = len(names) // 2
    context = {name: row[name] for name in names[:half] if name in row}
    candidate = dict.fromkeys(names[half:]) | {name: row[name] for name in names[half:] if name in row}
    # The second ranking uses a session for its context.
    found = [float(engine.rank(context, [candidate])[1][0]) for _ in range(2)]
    (full,) = engine.predict([{**context, **candidate}])
    if not abs(np.array(found) - full).max() < CLOSE:
        raise BundleError(f"a row has one probability, found {full} and, ranked, {found[1]}")
    engine.explain(row)
    engine.search(names[0], "", 1)


def main() -> None:
    """The child process."""
    folder = Path(sys.argv[1])
    try:
        engine = Engine.load(folder)
        with bundle.read_with_care(folder):
            use(engine)
    except FieldwiseError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(2)
    print(engine.version, flush=True)


if __name__ == "__main__":
    main()
