"""Writes ONNX graphs node by node, with standard operators."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.config.errors import ConfigError

OPSET, IR_VERSION = 18, 9
SMALL = 4096
INLINED = "inlined_"


def load_onnx() -> Any:
    """The onnx package, or an error that says how to install it."""
    try:
        import onnx
        import onnx.compose
        import onnx.helper
        import onnx.numpy_helper
    except ImportError:
        raise ConfigError("serving needs onnx, which is not installed: pip install fieldwise[serve]") from None
    return onnx


class Graph:
    """A graph under construction. Values are names; arrays and numbers become constants."""

    def __init__(self) -> None:
        self.onnx = load_onnx()
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self._known: dict[tuple[str, tuple[int, ...], bytes | None], str] = {}

    def op(self, kind: str, *inputs: str | NDArray[Any] | int | float | list[int], **attributes: Any) -> str:
        """Adds an operator and returns the name of its result."""
        name = f"{kind}_{len(self.nodes)}"
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        self.nodes.append(self.onnx.helper.make_node(kind, names, [name], **attributes))
        return name

    def pair(self, kind: str, *inputs: str | list[int], **attributes: Any) -> tuple[str, str]:
        """Adds an operator with two results."""
        first = self.op(kind, *inputs, **attributes)
        self.nodes[-1].output.append(f"{first}_second")
        return first, f"{first}_second"

    def constant(self, value: NDArray[Any] | int | float | list[int]) -> str:
        """The name of a constant; small equal ones are stored once. Python's numbers become int64 and float32."""
        array = np.asarray(value, dtype=np.float32 if isinstance(value, float) else None, order="C")
        key = (str(array.dtype), array.shape, array.tobytes() if array.nbytes <= SMALL else None)
        if key in self._known:
            return self._known[key]
        name = f"constant_{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(array, name))
        if array.nbytes <= SMALL:
            self._known[key] = name
        return name

    def input(self, name: str, kind: Any, shape: tuple[int | str, ...]) -> str:
        self.inputs.append(self._named(name, kind, shape))
        return name

    def stored(self, name: str, array: NDArray[Any], file: str, offset: int) -> str:
        """A constant whose numbers are in another file beside the graph."""
        tensor = self.onnx.TensorProto(
            name=name, data_type=self._type(array.dtype), dims=array.shape, data_location=self.onnx.TensorProto.EXTERNAL
        )
        for key, value in (("location", file), ("offset", str(offset)), ("length", str(array.nbytes))):
            tensor.external_data.add(key=key, value=value)
        self.constants.append(tensor)
        return name

    def inlined(self, model: bytes, inputs: list[str]) -> str:
        """Inlines another model: its inputs, in order, are values of this graph. Returns its one result."""
        found = self.onnx.compose.add_prefix(self.onnx.load_from_string(model), INLINED)
        for value, into in zip(inputs, found.graph.input, strict=True):
            self.nodes.append(self.onnx.helper.make_node("Identity", [value], [into.name]))
        self.nodes += found.graph.node
        self.constants += found.graph.initializer
        return str(found.graph.output[0].name)

    def output(self, value: str, name: str, kind: Any, shape: tuple[int | str, ...]) -> None:
        self.nodes.append(self.onnx.helper.make_node("Identity", [value], [name]))
        self.outputs.append(self._named(name, kind, shape))

    def model(self) -> Any:
        """The finished model."""
        graph = self.onnx.helper.make_graph(self.nodes, "fieldwise", self.inputs, self.outputs, self.constants)
        opset = [self.onnx.helper.make_opsetid("", OPSET)]
        return self.onnx.helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="fieldwise")

    def _named(self, name: str, kind: Any, shape: tuple[int | str, ...]) -> Any:
        return self.onnx.helper.make_tensor_value_info(name, self._type(np.dtype(kind)), shape)

    def _type(self, kind: Any) -> int:
        found: int = self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        return found

    # Shorthands for common operators.

    def sum(self, value: str, axes: list[int], keep: bool = False) -> str:
        return self.op("ReduceSum", value, axes, keepdims=int(keep))

    def mean(self, value: str, axes: list[int]) -> str:
        return self.op("ReduceMean", value, axes, keepdims=1)

    def take(self, value: str, places: NDArray[np.int64] | list[int], axis: int) -> str:
        return self.op("Gather", value, np.asarray(places, dtype=np.int64), axis=axis)

    def reshape(self, value: str, shape: list[int]) -> str:
        return self.op("Reshape", value, shape)

    def total(self, values: list[str]) -> str:
        """The sum of values that broadcast."""
        found = values[0]
        for value in values[1:]:
            found = self.op("Add", found, value)
        return found
