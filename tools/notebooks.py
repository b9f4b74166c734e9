"""Runs notebooks and keeps what they print and draw: `python tools/notebooks.py examples/notebooks/*.ipynb`.

The cells of a notebook run in one namespace in this process: no kernel is needed, so neither is Jupyter. A notebook
here ends a cell with a figure or an expression, and uses nothing that only Jupyter has.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import os
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

Output = dict[str, Any]


def run(path: Path) -> list[list[Output]]:
    """The outputs of each code cell, run in an empty folder."""
    import matplotlib

    matplotlib.use("Agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            return [_cell("".join(cell["source"]), names, path.name, place) for place, cell in enumerate(code_of(path))]
        finally:
            os.chdir(before)


def code_of(path: Path) -> list[dict[str, Any]]:
    """The code cells of a notebook."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def _cell(text: str, names: dict[str, Any], file: str, place: int) -> list[Output]:
    """Runs a cell; gives what it prints, its figures, and the value of its last line."""
    import matplotlib.pyplot as plt

    tree = ast.parse(text)
    last = ast.Expression(tree.body.pop().value) if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    where, value = f"{file}, cell {place + 1}", None
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, where, "exec"), names)
        if last:
            value = eval(compile(last, where, "eval"), names)
    outputs: list[Output] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())})
    if value is not None and not text.rstrip().endswith(";"):
        shown = {"text/plain": _lines(repr(value))}
        outputs.append({"output_type": "execute_result", "execution_count": place + 1, "metadata": {}, "data": shown})
    for number in plt.get_fignums():
        drawn = io.BytesIO()
        plt.figure(number).savefig(drawn, format="png", dpi=80, bbox_inches="tight", metadata={"Software": None})
        picture = {"image/png": base64.b64encode(drawn.getvalue()).decode()}
        outputs.append({"output_type": "display_data", "metadata": {}, "data": picture})
    plt.close("all")
    return outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def save(path: Path, outputs: list[list[Output]]) -> None:
    """Writes the outputs into the notebook."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for place, (cell, made) in enumerate(zip(cells, outputs, strict=True)):
        cell |= {"execution_count": place + 1, "outputs": made}
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        save(Path(name), run(Path(name).resolve()))
