"""A model with a part that has no ONNX form -> one graph for complete rows, by torch's exporter."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fieldwise.config.errors import ConfigError, first_line
from fieldwise.data.schema import Layout
from fieldwise.graphs.graph import OPSET
from fieldwise.graphs.plain_parts import Part
from fieldwise.nn.model import Model


class Combined(nn.Module):
    """The model from the looked-up vectors to logits."""

    def __init__(self, model: Model, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *found: Tensor) -> Tensor:
        return self.model.combine(dict(zip(self.names, found, strict=True)))


def traced(model: Model, layout: Layout, of: str, from_ids: bool = False) -> Part:
    """The graph from looked-up vectors, or from ids, to logits; `of` names the part that has no ONNX form."""
    ids = torch.zeros(2, sum(layout.widths), dtype=torch.int32)
    if from_ids:
        given, network = {"ids": ids}, model
    else:
        given = model.lookup(ids)
        network = Combined(model, list(given))  # type: ignore[assignment]
    rows, names = torch.export.Dim.DYNAMIC, list(given)
    shapes = tuple({0: rows} for _ in names)
    try:
        with _quietly(), torch.no_grad():
            program = torch.onnx.export(
                network.eval(),
                tuple(given.values()),
                dynamo=True,
                dynamic_shapes=shapes if from_ids else (shapes,),
                input_names=[f"given_{name}" for name in names],  # the exporter uses plain names for other values
                output_names=["logits"],
                opset_version=OPSET,
                verbose=False,
            )
    except ImportError as error:  # onnxscript is missing, or older than this torch
        way_out = "pip install --upgrade 'fieldwise[serve]' onnxscript"
        raise ConfigError(
            f"{of} has no ONNX form; tracing it needs onnxscript for torch {torch.__version__}, "
            f"found: {first_line(error)}; {way_out}"
        ) from None
    except Exception as error:  # an exporter can fail in any way
        way_out = "give it a plain_part and an onnx.py, as parts/inner has"
        raise ConfigError(f"{of} has no ONNX form and cannot be traced: {first_line(error)}; {way_out}") from None
    onnx = np.frombuffer(_checked(program, of).SerializeToString(), dtype=np.int8)
    return Part("traced", {"of": of, "inputs": names}, {"onnx": onnx})


def _checked(program: Any, of: str) -> Any:
    """The exported model; refused if it uses other operators than the other graphs here."""
    model = program.model_proto
    found = {(each.domain, each.version) for each in model.opset_import}
    if found != {("", OPSET)} or model.functions:
        raise ConfigError(f"{of} needs more than ONNX's operators of version {OPSET}, found {sorted(found)}")
    return model


@contextmanager
def _quietly() -> Iterator[None]:
    """Hides the exporter's messages on missing packages and its internals."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)
