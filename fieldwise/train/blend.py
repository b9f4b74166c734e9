"""Several trained models as one: their logits, weighted by what validation rows say, in a run folder like any other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fieldwise.bundle import bundle, calibration
from fieldwise.bundle.bundle import Bundle
from fieldwise.bundle.members import Blend, JoinedEncoder, JoinedIds
from fieldwise.bundle.predictions import same_rows
from fieldwise.bundle.scoring import Trained, device_of, in_batches, score
from fieldwise.config.errors import BundleError, ConfigError
from fieldwise.config.files import whole_folder
from fieldwise.config.progress import Progress
from fieldwise.config.settings import Config, TrainSettings
from fieldwise.data.dataset import Dataset, Level, Part
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.on_demand import made
from fieldwise.evaluation import metrics
from fieldwise.nn.tree_models import TREES
from fieldwise.train.runs import Run, base_rate, check_classes, own_bias

NAME = "blend"


@dataclass(frozen=True)
class Evidence:
    """Rows beside the validation part that members are judged by: their logits (K, n), labels (n,) and weights (n,)."""

    logits: NDArray[np.float64]
    labels: NDArray[np.uint8]
    weights: NDArray[np.float32] | None = None


def blend(
    sources: Sequence[Path],
    out: Path,
    data: Sequence[Path] = (),
    plain: bool = False,
    calibrated: str = "platt",
    device: str = "cpu",
    force: bool = False,
    beside: Evidence | None = None,
    pairs: bool = True,
) -> dict[str, Any]:
    """Blends runs or bundles into a run folder and returns its report; a blend among them counts as its members.

    `data` names the prepared folders of the members, in any order, where the ones they were trained on are gone;
    `plain` gives all members the same weight. Weights and calibration are fitted on the validation rows, and on what is
    known `beside` them of the same members. With `pairs` the report says how strongly fields interact.
    """
    opened = [bundle.load(source, only_scores=True) for source in sources]
    paths = {one.path: source for one, source in zip(opened, sources, strict=True)}
    members = [member for one in opened for member in one.members or (one,)]
    if len(members) < 2:
        raise ConfigError(f"a blend takes at least two runs or bundles, found {len(members)}")
    _check_labels(members)
    datasets = [_rows_of(member, data) for member in members]
    named = [str(paths.get(member.path, member.path)) for member in members]
    settings = TrainSettings(calibration=calibrated)
    config = Config(NAME, {"members": tuple(named), "plain": plain}, settings, device=device)
    with (
        whole_folder(out, f"bundle/{Blend.file}", force) as work,
        Blending(config, members, datasets, work, beside) as run,
    ):
        run.fit(Progress())
        return run.finish(pairs)


class Blending(Run):
    """Fits the weights of a blend on validation rows: the members have seen the training rows."""

    model: Blend[Trained]
    steps = 1

    def __init__(
        self,
        config: Config,
        members: Sequence[Bundle],
        datasets: Sequence[Dataset],
        out: Path,
        beside: Evidence | None = None,
    ) -> None:
        schema, encoder, self.model = bundle.joined(members)
        if config.device != "cpu":  # members are opened there
            self.model.to(device_of(config.device))
        self.members, self.datasets = members, datasets
        first = datasets[0]
        rows = {part: _joined(encoder, members, datasets, part) for part in _held_out(datasets)}
        prints = "-".join(dataset.fingerprint for dataset in datasets)
        parts = {"train": rows["valid"], **rows}
        joined = Dataset(
            first.path, schema, encoder.layout, parts, prints, encoder.names, levels=_same_levels(datasets)
        )
        super().__init__(config, joined, out, resume=False)
        valid = self.valid
        more = [beside] if beside is not None and len(beside.logits) == len(members) else []
        self.beside, self.labels = more, np.concatenate([valid.labels, *(own.labels for own in more)])
        self.weights = valid.weights
        if valid.weights is not None:
            self.weights = np.concatenate([valid.weights, *(own.weights for own in more if own.weights is not None)])

    def fit(self, progress: Progress) -> None:
        began, valid = time.monotonic(), self.valid
        logits = in_batches(self.model.each, valid.ids)
        self.logits = np.concatenate([logits, *(own.logits for own in self.beside)], axis=1)
        self.model.weights, self.model.shift = self._stacked(slice(None))
        self.losses = [metrics.log_loss(valid.labels, metrics.sigmoid(own), valid.weights) for own in logits]
        self.state.seconds = time.monotonic() - began
        for fact in self._members():
            self._log({"event": "member", **fact})

    def _stacked(self, rows: NDArray[np.int64] | slice) -> tuple[NDArray[np.float64], float]:
        """The weights and the shift that some of the validation rows say."""
        if self.config.options["plain"]:
            return self.model.weights, self.model.shift
        weights = None if self.weights is None else self.weights[rows]
        found, _ = calibration.stack(self.labels[rows], self.logits[:, rows], weights, shares=self._shares)
        return found, calibration.level_shift(self.logits[:, rows], found, weights)

    @cached_property
    def _shares(self) -> NDArray[np.float64]:
        """What each member would weigh before any row is seen: trees together half, where there are others, and models
        and members alike beyond that. Seeds of trees, and trees on other views of the rows, err together."""
        return shares_of([member.config.model for member in self.members])

    def _cross_fitted(self, logits: NDArray[np.floating[Any]]) -> float:
        """As of any run; the weights are fitted on the same rows as the calibration, and judged by others too."""

        def fitted(known: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.float64]:
            weights, shift = self._stacked(known)
            blended = weights @ self.logits + shift
            return self._calibrated(blended, known).probabilities(blended[others])

        rows, ours = self._unseen(fitted)
        weights = None if self.weights is None else self.weights[rows]
        alone = [self._unseen(partial(self._alone, own))[1] for own in self.logits]
        best = min(alone, key=lambda own: float(np.average(own, weights=weights)))
        self.doubt = float(np.std(ours - best) / np.sqrt(len(rows)))
        return float(np.average(ours, weights=weights))

    def _unseen(self, fitted: calibration.Refit) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        return calibration.unseen_losses(self.labels, fitted, self.weights, self.ahead is not None)

    def _alone(
        self, logits: NDArray[np.float64], known: NDArray[np.int64], others: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """What a member would say of rows, calibrated by others."""
        return self._calibrated(logits, known).probabilities(logits[others])

    def _calibrated(
        self, logits: NDArray[np.floating[Any]], rows: NDArray[np.int64] | slice = slice(None)
    ) -> calibration.Calibration:
        """As of any run; the rows beside the validation part count too."""
        blended = self.model.weights @ self.logits + self.model.shift if isinstance(rows, slice) else logits
        weights = None if self.weights is None else self.weights[rows]
        kind = self.settings.calibration
        return calibration.fit(
            kind, self.labels[rows], blended[rows], weights, self.offset, self.ahead, self.trained, self.bias
        )

    def _own_bias(self) -> float:
        """That of the members, by their weights."""
        if not self.ahead or not self.model.weights.any():
            return 0.0
        both = zip(self.members, self.datasets, strict=True)
        own = [
            own_bias(partial(score, member.model, columns=member.layout.columns), rows.parts["train"])
            for member, rows in both
        ]
        return float(np.average(own, weights=self.model.weights))

    @cached_property
    def trained(self) -> calibration.BaseRate | None:
        """The rate of the rows that the first member was trained on."""
        return base_rate(self.datasets[0].parts["train"], self.datasets[0].negatives_kept)

    def _expected(self, found: dict[str, Any]) -> dict[str, Any]:
        """As of any run, and the standard error of its cross-fitted loss beside that of the best member."""
        return super()._expected(found) | {"cross_fitted_se": self.doubt}

    def _take_best(self) -> None:
        """Does nothing: there is one fit."""

    def _facts(self) -> dict[str, Any]:
        unknown = dict.fromkeys(("rows_per_s", "epochs", "best_epoch"))
        rows = {name: part.rows for name, part in self.dataset.parts.items() if name != "train"}
        own = {"part_rows": rows, "members": self._members(), "shift": self.model.shift}
        return super()._facts() | unknown | own

    def _members(self) -> list[dict[str, Any]]:
        """Of each member: its run, model and data, its weight, and its validation log loss before calibration."""
        return [
            {"run": run, "model": member.config.model, "data": str(rows.path), "weight": weight, "log_loss": loss}
            for run, member, rows, weight, loss in zip(
                self.config.options["members"],
                self.members,
                self.datasets,
                self.model.weights.tolist(),
                self.losses,
                strict=True,
            )
        ]

    def _sources(self) -> dict[str, Path]:
        return dict(zip(bundle.member_names(len(self.members)), [one.path for one in self.members], strict=True))


def shares_of(models: Sequence[str]) -> NDArray[np.float64]:
    """The shares of 1 of members of these models (K,).

    >>> shares_of(["gbdt", "gbdt", "lr", "fm", "fm"]).tolist()
    [0.25, 0.25, 0.25, 0.125, 0.125]
    """
    kinds = [model in TREES for model in models]
    alike = [len({other for other, own in zip(models, kinds, strict=True) if own == kind}) for kind in kinds]
    every = zip(models, alike, strict=True)
    return np.array([1 / (len(set(kinds)) * number * models.count(model)) for model, number in every])


def _check_labels(members: Sequence[Bundle]) -> None:
    first = members[0]
    for member in members[1:]:
        if member.schema.label != first.schema.label:
            found = f"'{first.schema.label}' ({first.path}) and '{member.schema.label}' ({member.path})"
            raise ConfigError(f"members of a blend predict the same label, found {found}")


def _rows_of(member: Bundle, data: Sequence[Path]) -> Dataset:
    """The prepared folder of a member: the one it was trained on, or the first of those given that has its ids."""
    folders = list(data) or [Path(str(member.metrics.get("data", "")))]
    for folder in map(made, folders):
        if (folder / "data.json").is_file() and member.encoded(folder):
            return Dataset.open(folder).with_ranks
    named = ", ".join(map(str, folders))
    raise BundleError(
        f"none of the folders {named} is prepared with the encoder of {member.path}; name its own with --data"
        if data
        else f"the prepared folder {named} of {member.path} is gone or has changed; name it with --data"
    )


def _same_levels(datasets: Sequence[Dataset]) -> tuple[Level, ...]:
    """The blocks of time that all members were trained on; none where those differ."""
    levels = {dataset.levels for dataset in datasets}
    return levels.pop() if len(levels) == 1 else ()


def _held_out(datasets: Sequence[Dataset]) -> list[str]:
    """The held-out parts that all members have, after a check that they are the same rows."""
    first = datasets[0]
    shared = [part for part in ("valid", "test") if all(part in dataset.parts for dataset in datasets)]
    if "valid" not in shared:
        lacks = next(dataset.path for dataset in datasets if "valid" not in dataset.parts)
        raise BundleError(f"a blend needs validation rows to be fitted on, found none ({lacks})")
    check_classes(first.parts["valid"], "validation", first.path)
    for part in shared:
        ours = first.parts[part]
        for dataset in datasets[1:]:
            theirs = dataset.parts[part]
            if not same_rows(ours, theirs):
                counts = f"{ours.rows:,} and {theirs.rows:,} rows"
                found = "other labels or weights" if ours.rows == theirs.rows else counts
                where = f"part '{part}' of {first.path} and {dataset.path}"
                raise BundleError(f"members need the same held-out rows in one order, found {found} ({where})")
    return shared


def _joined(
    encoder: Encoder | JoinedEncoder, members: Sequence[Bundle], datasets: Sequence[Dataset], name: str
) -> Part:
    """The rows of a part as the blend reads them."""
    part = datasets[0].parts[name]
    if isinstance(encoder, Encoder):
        return part
    rows = {id(member.encoder): dataset for member, dataset in zip(members, datasets, strict=True)}
    own = [rows[id(one)].parts[name] for one in encoder.encoders]
    ids = JoinedIds(encoder, [one.ids for one in own])
    # Scoring and explaining only take its length and slices.
    joined = Part(cast(NDArray[np.int32], ids), part.labels, part.weights)
    if all(one.other_ids is None for one in own):
        return joined
    other = JoinedIds(encoder, [one.ids if one.other_ids is None else one.other_ids for one in own])
    return replace(joined, other_ids=cast(NDArray[np.int32], other))
