"""train(config): the loop, read top to bottom. It leaves a run folder:

config.toml  log.jsonl  checkpoint/  best.safetensors  bundle/  report.json  DONE
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from fieldwise import bundle, calibration, checkpoint, metrics
from fieldwise.config import Config, TrainSettings
from fieldwise.data.batches import Batch, batches, steps_per_epoch
from fieldwise.data.dataset import Dataset, Part
from fieldwise.errors import BundleError, ConfigError, TrainingError, unknown
from fieldwise.explain import pair_strength
from fieldwise.files import whole_file
from fieldwise.models import Model, options
from fieldwise.nn.embedding import Table
from fieldwise.optim import RowOptimizer, clip, learning_rate, make_optimizer, set_learning_rate
from fieldwise.scoring import device_of, score

# How often an epoch's loss is logged and shown.
LOGS_PER_EPOCH = 10


class Progress:
    """What the loop tells whoever watches; the command line draws a bar, everyone else hears nothing."""

    def start(self, rows: int, epochs: int, done: int) -> None: ...

    def step(self, rows: int, loss: float, epoch: int) -> None: ...

    def evaluated(self, record: dict[str, Any]) -> None: ...


def train(
    config: Config, data: Path, out: Path, resume: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """Trains on a prepared folder and returns the run's report; with `resume`, goes on where a run was killed."""
    progress = progress or Progress()
    dataset = Dataset.open(data)
    config = resolve(config)
    if (out / "DONE").exists() and resume:
        report: dict[str, Any] = json.loads((out / "report.json").read_text(encoding="utf-8"))
        return report
    run = _Run(config, dataset, out, resume)
    run.fit(progress)
    return run.finish()


def resolve(config: Config) -> Config:
    """The config with every model option written out, so that a run does not depend on later defaults."""
    known = options(config.model)
    for key in config.options:
        if key not in known:
            raise ConfigError(f"model {config.model}: {unknown('option', key, known)}")
    return replace(config, options={**known, **config.options})


def _with_batch_size(config: Config, rows: int) -> Config:
    """batch_size 0 becomes a 200th of the rows: small data need steps, large data speed."""
    size = config.train.batch_size or min(2000, max(50, round(rows / 200)))
    return replace(config, train=replace(config.train, batch_size=size))


class _Run:
    """One training run: the parts, and where it stands."""

    def __init__(self, config: Config, dataset: Dataset, out: Path, resume: bool) -> None:
        self.dataset, self.out, self.part = dataset, out, dataset.parts["train"]
        self.config = config = _with_batch_size(config, self.part.rows)
        self.settings = config.train
        if "valid" not in dataset.parts:
            raise BundleError(
                f"training needs a validation part to stop in time; prepare with --split ({dataset.path})"
            )
        self.device = device_of(config.device)
        torch.manual_seed(config.seed)
        self.model: Model = bundle.build_model(config, dataset.layout).to(self.device)
        _start(self.model, self.settings, self.part)
        self.optimizer = _optimizer(config, self.model)
        self._claim(resume)
        self.steps = steps_per_epoch(self.part.rows, self.settings.batch_size)
        self.at: dict[str, Any] = {
            "step": 0,
            "best_loss": math.inf,
            "best_step": 0,
            "bad": 0,
            "seconds": 0.0,
            "log_bytes": 0,
            "stopped": False,
        }
        if resume:
            self.at = checkpoint.load(out / "checkpoint", self.model, self.optimizer) or self.at
        self._trim_log()

    def _claim(self, resume: bool) -> None:
        """Takes the folder: a new one, or the same run's; never another's."""
        identity = {"data": self.dataset.fingerprint, "config": self.config.to_toml()}
        known = self.out / "identity.json"
        if resume and known.exists():
            before = json.loads(known.read_text(encoding="utf-8"))
            if before != identity:
                what = "data" if before["data"] != identity["data"] else "settings"
                raise TrainingError(
                    f"--resume needs the run's own {what}, found others; see {self.out / 'config.toml'}"
                )
            return
        if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            raise TrainingError(f"{self.out} already holds something; go on with --resume, or choose another --out")
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "config.toml").write_text(self.config.to_toml(), encoding="utf-8")
        with whole_file(known) as file:
            file.write_text(json.dumps(identity), encoding="utf-8")

    def fit(self, progress: Progress) -> None:
        """Epochs of steps, an evaluation after each, until validation log loss stops falling."""
        settings = self.settings
        progress.start(self.part.rows, settings.epochs, self.at["step"] // self.steps * self.part.rows)
        evaluate_every = max(1, self.steps // settings.evaluations)
        log_every = max(1, self.steps // LOGS_PER_EPOCH)
        began, saved, losses = time.monotonic(), time.monotonic(), []
        self.model.train()
        while self.at["step"] < settings.epochs * self.steps and not self.at["stopped"]:
            epoch, start = divmod(self.at["step"], self.steps)
            shuffled = batches(self.part, settings.batch_size, self.config.seed, epoch, start, settings.shuffle_rows)
            for batch in shuffled:
                loss = self._step(batch)
                self.at["step"] += 1
                within = self.at["step"] - epoch * self.steps
                losses.append(loss)
                progress.step(len(batch.labels), loss, epoch + 1)
                if within % log_every == 0 or within == self.steps:
                    self._log_loss(epoch + 1, losses, time.monotonic() - began)
                    losses = []
                if (within % evaluate_every == 0 and within + evaluate_every <= self.steps) or within == self.steps:
                    self.at["seconds"] += time.monotonic() - began
                    progress.evaluated(self._evaluate(epoch + 1))
                    began = time.monotonic()
                    self._checkpoint()
                    saved = began
                    if self.at["stopped"]:
                        break
                elif time.monotonic() - saved > 60 * settings.checkpoint_minutes:
                    self.at["seconds"] += time.monotonic() - began
                    self._checkpoint()
                    began = saved = time.monotonic()

    def _step(self, batch: Batch) -> float:
        """One update: look up, score, loss, gradients, optimiser."""
        settings = self.settings
        ids = torch.from_numpy(batch.ids).to(self.device)
        labels = torch.from_numpy(batch.labels).to(self.device)
        weights = None if batch.weights is None else torch.from_numpy(batch.weights).to(self.device)
        found = self.model.lookup(ids)
        loss = log_loss(self.model.combine(found), labels, weights)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise TrainingError(
                f"the loss is {value} at step {self.at['step'] + 1}; lower train.lr ({settings.lr}), or set train.clip"
            )
        penalty = self._penalty(found, len(labels))
        self.optimizer.zero_grad(set_to_none=True)
        (loss if penalty is None else loss + penalty).backward()
        if settings.clip:
            clip(self.model.parameters(), settings.clip)
        total = settings.epochs * self.steps
        set_learning_rate(
            self.optimizer,
            learning_rate(settings.lr, self.at["step"], total, settings.schedule, settings.warmup),
        )
        self.optimizer.step()
        return value

    def _penalty(self, found: dict[str, Tensor], rows: int) -> Tensor | None:
        """L2 on the looked-up rows, per instance (paper: summed over the batch), and on the dense weights."""
        terms = []
        if self.settings.l2:
            scale = self.settings.l2 / 2 / (rows if self.settings.l2_reduction == "mean" else 1)
            terms += [scale * values.square().sum() for values in found.values()]
        if self.settings.l2_full:
            terms += [self.settings.l2_full / 2 * table.weight.square().sum() for table in _tables(self.model)]
        if self.settings.l2_weights:
            terms += [self.settings.l2_weights / 2 * p.square().sum() for p in _dense_weights(self.model)]
        return torch.stack(terms).sum() if terms else None

    def _evaluate(self, epoch: int) -> dict[str, Any]:
        """Validation metrics; the best weights so far go to disk, and patience runs out."""
        valid = self.dataset.parts["valid"]
        found = metrics.evaluate(valid.labels, metrics.sigmoid(score(self.model, valid.ids)), valid.weights)
        found.pop("reliability")
        better = found["log_loss"] < self.at["best_loss"]
        if better:
            self.at.update(best_loss=found["log_loss"], best_step=self.at["step"], bad=0)
            with whole_file(self.out / "best.safetensors") as file:
                save_file({k: v.detach().cpu().contiguous() for k, v in self.model.state_dict().items()}, file)
        else:
            self.at["bad"] += 1
            self.at["stopped"] = self.at["bad"] > self.settings.patience
        record = {"event": "valid", "epoch": epoch, **found, **self._place(), "best": better}
        self._log(record)
        return record

    def _place(self) -> dict[str, int]:
        epochs, within = divmod(self.at["step"], self.steps)
        rows = epochs * self.part.rows + within * self.settings.batch_size
        return {"step": self.at["step"], "rows": rows}

    def _log_loss(self, epoch: int, losses: list[float], seconds: float) -> None:
        place = self._place()
        speed = place["rows"] / max(self.at["seconds"] + seconds, 1e-9)
        self._log({"event": "train", "epoch": epoch, **place, "loss": float(np.mean(losses)), "rows_per_s": speed})

    def _log(self, record: dict[str, Any]) -> None:
        line = json.dumps(record) + "\n"
        with (self.out / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(line)
        self.at["log_bytes"] += len(line.encode())

    def _trim_log(self) -> None:
        """Drops what was logged after the checkpoint: those steps will be done, and logged, again."""
        path = self.out / "log.jsonl"
        if path.exists():
            with path.open("r+b") as file:
                file.truncate(self.at["log_bytes"])

    def _checkpoint(self) -> None:
        checkpoint.save(self.out / "checkpoint", self.model, self.optimizer, self.at)

    def finish(self) -> dict[str, Any]:
        """Best weights, calibration on validation rows, metrics of all held-out parts, bundle, report, DONE."""
        best = self.out / "best.safetensors"
        self.model.load_state_dict(load_file(best, device=str(self.device)))
        valid = self.dataset.parts["valid"]
        logits = score(self.model, valid.ids)
        fitted = calibration.fit(self.settings.calibration, valid.labels, logits, valid.weights)
        report: dict[str, Any] = {
            "model": self.config.model,
            "parameters": count_parameters(self.model),
            "rows_per_s": self._place()["rows"] / max(self.at["seconds"], 1e-9),
            "seconds": self.at["seconds"],
            "epochs": -(-self.at["step"] // self.steps),
            "best_epoch": -(-self.at["best_step"] // self.steps),
            "seed": self.config.seed,
            "data": str(self.dataset.path),
            "calibration": fitted.kind,
        }
        for name in ("valid", "test"):
            if name in self.dataset.parts:
                report[name] = _held_out(self.model, self.dataset.parts[name], fitted)
        if self.dataset.layout.fields > 1:
            report["pair_strength"] = self._pair_strength(valid)
        bundle.write(self.out / "bundle", self.config, self.dataset.path, best, fitted, report)
        with whole_file(self.out / "report.json") as file:
            file.write_text(json.dumps(report, indent=1), encoding="utf-8")
        (self.out / "DONE").touch()
        best.unlink()
        return report

    def _pair_strength(self, valid: Part) -> dict[str, Any]:
        strength = pair_strength(lambda ids: score(self.model, ids), valid.ids, self.dataset.layout, rows=128)
        return {"fields": self.dataset.schema.names, "matrix": strength.round(6).tolist()}


def log_loss(logits: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
    """Mean log loss of a batch; weighted rows count by their weight, and the mean is over rows."""
    return functional.binary_cross_entropy_with_logits(logits, labels, weights)


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _held_out(model: Model, part: Part, fitted: calibration.Calibration) -> dict[str, Any]:
    return metrics.evaluate(part.labels, fitted.probabilities(score(model, part.ids)), part.weights)


def _tables(model: nn.Module) -> list[Table]:
    return [part for part in model.modules() if isinstance(part, Table)]


def _start(model: Model, settings: TrainSettings, part: Part) -> None:
    """Starting values that are a matter of training: the tables', and the bias at the base rate."""
    for table in _tables(model):
        table.start(settings.init, settings.init_scale)
    if settings.base_rate_start and model.bias is not None:
        rate = float(np.average(part.labels, weights=part.weights))
        nn.init.constant_(model.bias, math.log(rate / (1 - rate)) if 0 < rate < 1 else 0.0)


def _dense_weights(model: nn.Module) -> list[Tensor]:
    """Kernels, sub-networks, attention and DNN weights: no tables, no biases, no gains of norms."""
    outside = {id(table.weight) for table in _tables(model)}
    names = [(name.split("."), p) for name, p in model.named_parameters() if id(p) not in outside and p.dim() > 1]
    return [p for parts, p in names if not {"biases", "norms", "gain", "shift"} & set(parts)]


def _optimizer(config: Config, model: nn.Module) -> RowOptimizer:
    s = config.train
    return make_optimizer(
        s.optimizer,
        model.parameters(),
        lr=s.lr,
        eps=s.eps,
        betas=s.betas,
        eps_mode=s.eps_mode,
        sparse_mode=s.sparse_mode,
        momentum=s.momentum,
        initial_accumulator=s.initial_accumulator,
        l1=s.ftrl_l1,
        l2=s.ftrl_l2,
        beta=s.ftrl_beta,
    )
