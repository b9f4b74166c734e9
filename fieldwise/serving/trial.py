"""A bundle's first try, in a process of its own: what its files make a library do there, the server does not suffer."""

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

# A large network that was never exported takes minutes; one that takes longer than this hangs.
SECONDS = 900.0
# How far a ranking may be from the same rows as a whole: much more than float32 loses, much less than anybody sees.
CLOSE = 1e-4


def tried(path: Path) -> str:
    """The version of a bundle that a child process could load and score; BundleError with what became of it else."""
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
    """Scores two rows, of missing values and of known ones, and says what the model is; returns the second row.

    What cannot be done with a bundle at all fails here, and not when the first request comes.
    """
    known: Row = {field.name: field.examples[0] for field in engine.fields if field.examples}
    found = engine.predict([{}, known])
    if not (np.isfinite(found).all() and (found >= 0).all() and (found <= 1).all()):
        raise BundleError(f"a model gives probabilities, found {found.tolist()}")
    orjson.dumps(engine.model)
    return known


def use(engine: Engine) -> None:
    """All that requests ask of an engine, once."""
    row = score_once(engine)
    names = [field.name for field in engine.fields]
    half = len(names) // 2
    context = {name: row[name] for name in names[:half] if name in row}
    candidate = dict.fromkeys(names[half:]) | {name: row[name] for name in names[half:] if name in row}
    # The second time it has a graph of its own.
    found = [float(engine.rank(context, [candidate])[1][0]) for _ in range(2)]
    (whole,) = engine.predict([{**context, **candidate}])
    if not abs(np.array(found) - whole).max() < CLOSE:
        raise BundleError(f"a row has one probability, found {whole} and, ranked, {found[1]}")
    engine.explain(row)
    engine.search(names[0], "", 1)


def main() -> None:
    """The child's own process."""
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
