"""train(config): one run, read top to bottom. It leaves a run folder:

config.toml  log.jsonl  checkpoint/  bundle/  report.json  predictions.parquet  DONE

Networks are trained in network.py, trees in boosting.py, and LR is fitted at once in solving.py; runs.py keeps the
folder for all of them. Only a network needs torch, and so nothing else loads it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fieldwise.config.errors import ConfigError
from fieldwise.config.options import arguments, check_names, options_of
from fieldwise.config.progress import Progress
from fieldwise.config.settings import NEWTON, Config
from fieldwise.data.dataset import Dataset
from fieldwise.nn.tree_models import TREES
from fieldwise.train import worker
from fieldwise.train.boosting import Boosting
from fieldwise.train.callbacks import Callback, Callbacks
from fieldwise.train.race import Race
from fieldwise.train.runs import Run, asked_for, check_parts, report_of
from fieldwise.train.solving import LR, Solving
from fieldwise.train.state import Stopwatch


def train(
    config: Config,
    data: Path,
    out: Path,
    resume: bool = False,
    progress: Progress | None = None,
    pairs: bool = True,
    race: Race | None = None,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Trains on a prepared folder and returns the run's report; with `resume`, goes on where a run was killed.

    With `pairs` the report says how strongly fields interact. A `race` may end the run early. `callbacks` hear what is
    logged, beside those that `train.callbacks` names.

    Of several workers, rank 0 alone writes, reads the test rows and returns a report; the others return an empty one.
    """
    watch = Stopwatch("setup")
    resume, dataset = resume or worker.restarted(), Dataset.open(data)
    asked = asked_for(config, dataset)
    known = report_of(out, asked) if resume else None
    if known is not None:
        return known
    listeners = Callbacks(config, callbacks) if worker.first() else None
    with start(config, dataset, out, resume) as run:
        run.asked, run.watch = asked, watch
        if run.finished:
            report: dict[str, Any] = json.loads((out / "report.json").read_text(encoding="utf-8"))
            return report
        run.race = race or run.race
        shown = progress if progress and worker.first() else Progress()
        if listeners:
            run.listen(listeners, shown)
        run.fit(shown)
        return run.finish(pairs)


def start(config: Config, dataset: Dataset, out: Path, resume: bool = False) -> Run:
    """The run that a config describes; it holds its folder until it is closed. `fit` reads training and validation rows
    alone, and `finish` reads the test rows too."""
    check_parts(dataset)
    origin = None
    if config.train.continue_from:
        from fieldwise.train.incremental import load_origin

        origin = load_origin(config)
        config = replace(config, options={**origin.config.options, **config.options})
    config = resolve(config)
    if config.model in TREES:
        if worker.count() > 1:
            raise ConfigError(f"{config.model} is trained by one process; leave --workers out (it uses all cores)")
        dataset, build = dataset.with_ranks, TREES[config.model]
        return Boosting(config, dataset, out, resume, build(dataset.layout, **arguments(build, config.options)))
    if config.train.optimizer == NEWTON:
        if worker.count() > 1:
            raise ConfigError(f"train.optimizer={NEWTON} fits in one process; leave --workers out")
        return Solving(config, dataset, out, resume)
    from fieldwise.train.network import network

    return network(config, dataset, out, resume, origin)


def resolve(config: Config) -> Config:
    """The config with every model option written out, so that a run does not depend on later defaults."""
    if config.model == LR and not config.options:  # it has none
        return config
    if config.model in TREES:
        build: Any = TREES[config.model]
    else:
        from fieldwise.models import named

        build = named(config.model)
    check_names(build, config.options)
    return replace(config, options={**options_of(build), **config.options})
