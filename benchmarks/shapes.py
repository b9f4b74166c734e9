"""PIN's micro networks by compiled loops beside the plain ones in float64, over shapes drawn by chance (CPU, float32).

    python benchmarks/shapes.py [--count 2000] [--seed 0] [--limit 1e-4]

Shapes have 2 to 12 fields, vectors of 1 to 130, 1 to 130 units, 1 to 8 outputs and 1 to 300 rows. An error is the
largest difference of any gradient, by the largest gradient of the shape. Prints the worst so far and, at the end,
quantiles; exit code 1 if one is beyond the limit.
"""

from __future__ import annotations

import argparse
import math
from random import Random

import numpy as np
import torch

from fieldwise.loops import running
from fieldwise.parts.micro.formula import MicroNetwork
from fieldwise.speed.checks import Shape, compared

ENDS = ((2, 12), (1, 130), (1, 130), (1, 8), (1, 300))


def largest_errors(shape: Shape) -> tuple[float, float]:
    """Of features by the largest of them, and of gradients by the largest of them."""
    # The loops leave the last norm to others.
    found = compared(
        lambda shape: MicroNetwork(shape.dims, (shape.units, shape.outs), last_norm=False),
        "float32",
        torch.device("cpu"),
        shape,
    )
    (ours, theirs), gradients = found[0], found[2:]
    most = max(float(expected.abs().max()) for _, expected in gradients)
    far = max(float((one.double() - two).abs().max()) for one, two in gradients)
    forward = float((ours.double() - theirs).abs().max() / theirs.abs().max())
    return forward, far / most if math.isfinite(far) else math.inf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=1e-4)
    asked = parser.parse_args()
    running.ROWS_PER_THREAD = 1  # few rows take the loops too
    torch.manual_seed(asked.seed)
    random, errors, worst = Random(asked.seed), [], 0.0
    for number in range(asked.count):
        shape = Shape(*(random.randint(*ends) for ends in ENDS))
        errors.append(largest_errors(shape))
        if max(errors[-1]) > worst:
            worst = max(errors[-1])
            print(f"{number:5}  features {errors[-1][0]:.1e}  gradients {errors[-1][1]:.1e}  {shape}", flush=True)
    for what, found in zip(("features", "gradients"), np.array(errors).T, strict=True):
        quantiles = ", ".join(f"{q:g}: {np.quantile(found, q):.1e}" for q in (0.5, 0.9, 0.99, 1))
        print(f"{what}: {(found > asked.limit).sum()} of {len(found)} beyond {asked.limit:g}; quantiles {quantiles}")
    raise SystemExit(int(worst > asked.limit))


if __name__ == "__main__":
    main()
