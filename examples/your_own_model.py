"""A model of your own: choose an embedding, an interaction and a classifier, and register the choice."""

import tempfile
from pathlib import Path

from fieldwise import World, load_config
from fieldwise.data.encode.prepare import prepare
from fieldwise.models import Branch, Model, register
from fieldwise.nn.classifiers import DNN, Layers, Sum
from fieldwise.nn.embedding import Embedding, Linear, Vectors
from fieldwise.parts.inner.formula import InnerProduct
from fieldwise.parts.kernel.formula import KernelProduct
from fieldwise.train.loop import train


@register
def deep_kernel(sizes, *, vectors=Vectors(8), layers=Layers((32,))):
    """KFM beside a DNN on the inner products."""
    dims = vectors.sizes(sizes)
    products = InnerProduct(dims)
    wide = Branch(KernelProduct(dims), Sum())
    return Model(Embedding(sizes, dims), wide, Branch(products, DNN(products.width, layers)), linear=Linear(sizes))


folder = Path(tempfile.mkdtemp())
log = World("demo").log(5000).table
prepare({"train": lambda: iter([log])}, folder / "data", "click")
config = load_config(overrides=["model.name=deep_kernel", "model.dim=4", "train.epochs=2"])
report = train(config, folder / "data", folder / "run")
print(f"{report['model']}: {report['parameters']:,} parameters, test AUC {report['test']['auc']:.3f}")
