"""Your own model in one file: an interaction in plain torch, a choice of parts, and its registration.

It is trained on a CPU or in a CUDA graph, exported, served, explained and measured like the others.
"""

import tempfile
from pathlib import Path

from torch import Tensor, nn

from fieldwise import World, load_config
from fieldwise.data.encode.prepare import prepare
from fieldwise.models import Branch, Model, register
from fieldwise.nn.classifiers import DNN, Layers
from fieldwise.nn.embedding import Linear, Vectors
from fieldwise.parts.affine.formula import affine
from fieldwise.parts.features.formula import Flatten
from fieldwise.parts.interactions import Interaction
from fieldwise.train.loop import train


class Cross(Interaction):
    """x <- x0 * (W x + b) + x, repeated, on the concatenated vectors: width sum of dims."""

    def __init__(self, dims, times):
        super().__init__()
        self.flat = Flatten(dims)
        self.width = self.flat.width
        self.layers = nn.ModuleList(affine(self.width, self.width) for _ in range(times))

    def forward(self, v: Tensor) -> Tensor:
        x: Tensor = self.flat(v)
        first = x
        for layer in self.layers:
            x = first * layer(x) + x
        return x


@register
def dcn(layout, *, vectors=Vectors(8), crosses=2, layers=Layers((32,))):
    """DCNv2: explicit crosses of bounded degree beside a DNN (Wang et al. 2021)."""
    dims = vectors.sizes(layout)
    cross, flat = Cross(dims, crosses), Flatten(dims)
    wide, deep = Branch(cross, DNN(cross.width, Layers(()))), Branch(flat, DNN(flat.width, layers))
    return Model(vectors.embedding(layout), wide, deep, linear=Linear(layout))


folder = Path(tempfile.mkdtemp())
log = World("demo").log(5000).table
prepare({"train": lambda: iter([log])}, folder / "data", "click")
config = load_config(overrides=["model.name=dcn", "model.dim=4", "train.epochs=2"])
report = train(config, folder / "data", folder / "run")
print(f"{report['model']}: {report['parameters']:,} parameters, test AUC {report['test']['auc']:.3f}")
