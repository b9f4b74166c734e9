"""Training speed beside other libraries, on the same arrays in the same run: rows per second and the ratio to ours.

    python benchmarks/peers.py [--vocab 1e6] [--rows 10000] [--models deepfm,fnn,ipnn,afm,ccpm,fm,ffm,lr] [--trees]

Makes an environment with DeepCTR-Torch, torchfm, FuxiCTR, LightGBM and Vowpal Wabbit in the user's cache folder; torch,
numpy and XGBoost are those of this one. 39 fields, vectors of 20 (FFM 4), DNN of five layers of 700, batches of 2000,
Zipf's ids. Each peer trains in a process of its own as its own fit or example does (peers_child.py); steps of all
alternate, so that what else the machine does meets all alike. Wall and processor time; a library that cannot be had or
fails is named and left out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

# isort: off
import fieldwise  # noqa: F401  before torch: it sets how long torch's threads spin
# isort: on

import numpy as np
import torch
from environments import environment

from fieldwise.data.batches import Batch
from fieldwise.data.dataset import Part
from fieldwise.data.schema import Layout
from fieldwise.speed import bench

PINS = ("deepctr-torch==0.3.0", "torchfm==0.7.0", "fuxictr==2.3.10", "lightgbm==4.7.0", "vowpalwabbit==9.11.9")
NEEDED = ("requests", "urllib3", "idna", "certifi", "charset-normalizer", "h5py", "PyYAML", "narwhals")
CHILD = Path(__file__).with_name("peers_child.py")
PEERS = {
    "deepfm": ("torchfm", "DeepCTR-Torch"),
    "fnn": ("torchfm", "FuxiCTR layers"),
    "ipnn": ("torchfm", "DeepCTR-Torch", "FuxiCTR layers"),
    "afm": ("torchfm", "DeepCTR-Torch"),
    "ccpm": ("DeepCTR-Torch",),
    "fm": ("torchfm", "DeepCTR-Torch"),
    "ffm": ("torchfm",),
    "lr": ("torchfm", "Vowpal Wabbit"),
}
PRECISIONS = ("float32", "bf16")
BATCH, WARM_UP = 2000, 2  # the first steps compile and allocate
Times = tuple[float, float]  # on the wall, of processors
Learn = Callable[[int, int], Times]


def main() -> None:
    arguments = parse()
    python = environment("peers", PINS, NEEDED, alone=False)
    layout = bench.layout_of(int(float(arguments.vocab)))
    part = bench.drawn_rows(layout, arguments.rows + WARM_UP * BATCH, seed=0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {layout.rows:,} categories")
    heads = "".join(f"{f'{kind} / this':>16}{'in CPU-s':>10}" for kind in PRECISIONS)
    print(f"{'model':8}{'library':24}{'rows/s':>12}{'per CPU-s':>12}{heads}")
    with tempfile.TemporaryDirectory() as folder:
        for name, array in (("ids", part.ids), ("labels", part.labels.astype(np.float32)), ("sizes", layout.sizes)):
            np.save(Path(folder, f"{name}.npy"), array)
        for model in filter(None, arguments.models.split(",")):
            compare(model, layout, part, python, folder)
        if arguments.trees:
            trees(part, python, folder)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Training speed beside other libraries.")
    parser.add_argument("--vocab", default="1e6")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--models", default=",".join(PEERS))
    parser.add_argument("--trees", action="store_true")
    return parser.parse_args()


class Peer:
    """A library in a process of its own, which trains on rows low..high as it is told, and says how long it took."""

    def __init__(self, python: str, folder: str, model: str, library: str) -> None:
        # What fieldwise set for itself is not the peer's.
        own = {key: value for key, value in os.environ.items() if key not in ("GOMP_SPINCOUNT", "PYTHONPATH")}
        command, pipe = [python, str(CHILD), folder, model, library], subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=own)
        self._answer("ready")

    def __call__(self, low: int, high: int) -> Times:
        assert self.process.stdin is not None
        print(low, high, file=self.process.stdin, flush=True)
        wall, processor = self._answer("took").split()
        return float(wall), float(processor)

    def _answer(self, word: str) -> str:
        """What follows the word on its line; libraries print other lines."""
        said = ""
        for line in self.process.stdout or ():
            if line.startswith(word):
                return line.removeprefix(word)
            said = line.strip() or said
        raise RuntimeError(said)

    def end(self) -> None:
        self.process.communicate()


def peers(model: str, libraries: tuple[str, ...], python: str, folder: str) -> dict[str, Peer]:
    """The libraries that are there and can make the model; the others are named."""
    found = {}
    for library in libraries:
        try:
            found[library] = Peer(python, folder, model, library)
        except RuntimeError as error:
            print(f"{model:8}{library:24}left out: {error}")
    return found


def ours(model: str, precision: str, layout: Layout, part: Part) -> Learn:
    step = bench.made_step(model, layout, bench.Setting(precision=precision))

    def learn(low: int, high: int) -> Times:
        batch = Batch(part.ids[low:high], part.labels[low:high].astype(np.float32), None)
        wall, processor = time.perf_counter(), time.process_time()
        step(batch, low // BATCH)
        return time.perf_counter() - wall, time.process_time() - processor

    return learn


def compare(model: str, layout: Layout, part: Part, python: str, folder: str) -> None:
    """Steps of ours and of each peer in turn; one line for each."""
    others = peers(model, PEERS[model], python, folder)
    learners: dict[str, Learn] = {f"fieldwise {kind}": ours(model, kind, layout, part) for kind in PRECISIONS}
    learners |= others
    spent = {library: np.zeros(2) for library in learners}
    for low in range(0, part.rows, BATCH):
        for library, learn in learners.items():
            spent[library] += (low >= WARM_UP * BATCH) * np.array(learn(low, min(low + BATCH, part.rows)))
    for peer in others.values():
        peer.end()
    speeds = {library: (part.rows - WARM_UP * BATCH) / seconds for library, seconds in spent.items()}
    for library, speed in speeds.items():
        ratios = [speeds[f"fieldwise {kind}"] / speed for kind in PRECISIONS]
        shown = "".join(f"{ratio[0]:16.2f}{ratio[1]:10.2f}" for ratio in ratios)
        print(f"{model:8}{library:24}{speed[0]:12,.0f}{speed[1]:12,.0f}{shown}", flush=True)


def trees(part: Part, python: str, folder: str) -> None:
    """Rows times ten rounds per second of the tree libraries; XGBoost is what `--model gbdt` trains with."""
    for library, learn in peers("trees", ("XGBoost", "LightGBM"), python, folder).items():
        speeds = "".join(f"{10 * part.rows / seconds:12,.0f}" for seconds in learn(0, part.rows))
        learn.end()
        print(f"{'trees':8}{library:24}{speeds}  row-rounds")


if __name__ == "__main__":
    main()
