"""What does following gain, and how much may a candidate be worse? A simulated log, day after day.

    python benchmarks/follow_margins.py [--seeds 3] [--days 10] [--rows 3000] [--model fm]

A model of days 0 to 6 follows later days, one file in a round, with several margins (standard errors by which a
candidate's log loss may be higher). Every day is first scored by the version that is in service when it comes. The
table has the mean log loss of these days above that of the truth, the gain over the model that nobody moves on, and how
many candidates were taken.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from fieldwise.bundle.predictor import Predictor
from fieldwise.config.settings import load_config
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.world import World, write_log
from fieldwise.evaluation import metrics
from fieldwise.follow.desk import Wanted
from fieldwise.follow.follower import Follower
from fieldwise.train.loop import train

FIRST_DAYS, FIRST_ROWS = 7, 20_000
MARGINS = (0.0, 0.5, 1.0, 1000.0)


def loss_of(bundle: Path, world: World, day: int, rows: int, seed: int) -> tuple[float, float]:
    """The log loss of a day by a bundle, and by the true probabilities."""
    log = world.log(rows, seed=seed, first_day=day, last_day=day)
    (found,) = Predictor.load(bundle).labelled([log.table])
    losses = metrics.losses(found.labels, found.probabilities), metrics.losses(found.labels, log.probability)
    return float(losses[0].mean()), float(losses[1].mean())


def followed(folder: Path, run: Path, world: World, days: int, rows: int, margin: float | None) -> list[float]:
    """For each day the log loss of the version in service above that of the truth, and at the end the swaps."""
    folder.mkdir()
    (folder / "logs").mkdir()
    (folder / "live").symlink_to(run)
    follower = Follower(Wanted(folder / "logs", folder / "live", folder / "work", margin=margin or 0.0, min_age=0.0))
    found = []
    for day in range(FIRST_DAYS, FIRST_DAYS + days):
        loss, truth = loss_of(folder / "live", world, day, rows, day)
        found.append(loss - truth)
        if margin is not None:
            write_log(world, rows, folder / "logs" / f"day-{day}.csv", day, False, day, day)
            follower.cycle()
    swaps = sum(e["step"] == "done" and e["decision"] == "swapped" for e in follower.journal.entries)
    return [float(np.mean(found)), float(swaps)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Follows simulated days with several margins.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--days", type=int, default=10)
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--model", default="fm")
    chosen = parser.parse_args()
    found: dict[float | None, list[list[float]]] = {}
    for seed in range(chosen.seeds):
        world = World("demo", seed, days=FIRST_DAYS + chosen.days)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            log = world.log(FIRST_ROWS, seed=seed, last_day=FIRST_DAYS - 1).table
            prepare({"train": lambda log=log: iter([log])}, folder / "data", "click", split=Split(), drop=("day",))
            settings = load_config(overrides=[f"model.name={chosen.model}", "device=cpu"])
            train(settings, folder / "data", folder / "run", pairs=False)
            for margin in (None, *MARGINS):
                own = folder / f"margin-{margin}"
                days, rows = chosen.days, chosen.rows
                found.setdefault(margin, []).append(followed(own, folder / "run", world, days, rows, margin))
    print(f"{chosen.model}, {chosen.days} days of {chosen.rows:,} rows, {chosen.seeds} seeds:")
    losses = {margin: np.array(own)[:, 0] for margin, own in found.items()}
    for margin, own in losses.items():
        name = "not followed" if margin is None else f"margin {margin:g}"
        gains = [mean_and_error(losses[other] - own) for other in (None, MARGINS[-1])]
        swaps = np.array(found[margin])[:, 1].mean()
        said = f"gain over not followed {gains[0]}, over all taken {gains[1]}"
        print(f"{name:14}{own.mean():.5f}  {said}  swaps {swaps:.1f}")


def mean_and_error(gains: np.ndarray) -> str:
    error = gains.std(ddof=1) / np.sqrt(len(gains)) if len(gains) > 1 else 0.0
    return f"{gains.mean():+.5f} ± {error:.5f}"


if __name__ == "__main__":
    main()
