"""FuxiCTR's layers and ours with the same weights: the largest difference of logits, in float64 and in float32.

    python benchmarks/fuxictr_layers.py [--rows 2000] [--zoo PATH]

Makes an environment with FuxiCTR in the user's cache folder, which sees torch of this one; FuxiCTR's own classes run
there, in a process of their own. Its wheel has layers and not these models: what only they have, such as AutoInt's
attention, is read from a checkout of its repository, PATH; without one such a model is left out.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

import torch
from environments import environment
from torch import Tensor

from fieldwise import models
from fieldwise.data.schema import Layout
from fieldwise.models import Model
from fieldwise.parts.ways import formulas_alone

PINS = ("fuxictr==2.3.10",)
NEEDED = ("h5py", "PyYAML", "narwhals", "scikit-learn", "pandas", "tqdm", "polars")
CHILD = Path(__file__).with_name("fuxictr_child.py")
LAYOUT = Layout.of([30, 50, 7, 11, 90, 4])
DEEP = {"dim": 8, "hidden": (32, 16), "norm": "none", "dropout": 0.0}
MODELS = {
    "DCNv2": ("dcnv2", {**DEEP, "crosses": 3}),
    "DCNv2, stacked": ("dcnv2", {**DEEP, "crosses": 3, "structure": "stacked"}),
    "DCNv2, mixture": ("dcnv2", {**DEEP, "crosses": 2, "rank": 4, "experts": 3}),
    "xDeepFM": ("xdeepfm", {**DEEP, "maps": (6, 5)}),
    "AutoInt": ("autoint", {**DEEP, "attention": 12, "heads": 3, "attention_layers": 2, "scaled": True}),
    "FinalMLP": ("finalmlp", {**DEEP, "gate": "row", "gate_hidden": (10,), "heads": 4}),
    "FiBiNET, pair": ("fibinet", {**DEEP, "bilinear": "pair"}),
    "FiBiNET, each": ("fibinet", {**DEEP, "bilinear": "each"}),
    "GDCN": ("gdcn", {**DEEP, "crosses": 3}),
    "MaskNet, serial": ("masknet", {**DEEP, "hidden": (), "structure": "serial", "blocks": (24, 12)}),
    "MaskNet, parallel": ("masknet", {**DEEP, "structure": "parallel", "blocks": (12, 12)}),
    "EDCN": ("edcn", {"dim": 8, "crosses": 2, "norm": "none"}),
    "FinalNet": ("finalnet", {"dim": 8, "blocks": (16, 12), "dropout": 0.0}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="FuxiCTR's layers and ours with the same weights.")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--zoo", default="", help="a checkout of FuxiCTR's repository")
    asked = parser.parse_args()
    python = environment("fuxictr", PINS, NEEDED, alone=False)
    print(
        f"torch {torch.__version__}, {PINS[0]}, {asked.rows} rows, {LAYOUT.fields} fields; logits with the same weights"
    )
    print(f"{'model':20}{'largest logit':>16}{'float64':>14}{'float32':>14}")
    for title, (name, settings) in MODELS.items():
        compare(title, name, settings, asked, python)


def compare(title: str, name: str, settings: dict[str, object], asked: argparse.Namespace, python: str) -> None:
    """Prints the largest difference of logits."""
    torch.manual_seed(0)
    model = models.build(name, LAYOUT, settings)
    assert isinstance(model, Model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    ids = torch.stack([torch.randint(size, (asked.rows,), dtype=torch.int32) for size in LAYOUT.sizes], dim=1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "in.pt")
        torch.save({"weights": model.state_dict(), "found": model.lookup(ids), "settings": settings}, file)
        done = subprocess.run(
            [python, CHILD, title.split(",")[0], file, asked.zoo], capture_output=True, text=True, check=False
        )
        if done.returncode:
            print(f"{title:20}left out: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
            return
        theirs: dict[str, Tensor] = torch.load(Path(folder, "out.pt"))
    with torch.no_grad():
        single = model.eval()(ids)
        with formulas_alone():
            double = model.double()(ids)
    apart = [(ours - theirs[kind]).abs().max().item() for ours, kind in ((double, "float64"), (single, "float32"))]
    print(f"{title:20}{double.abs().max().item():16.2f}{apart[0]:14.1e}{apart[1]:14.1e}")


if __name__ == "__main__":
    main()
