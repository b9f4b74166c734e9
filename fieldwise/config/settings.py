"""The settings of a run: model, training; read from TOML, changed by KEY=VALUE, written back complete."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_type_hints

from fieldwise.config.errors import TYPES, ConfigError, unknown
from fieldwise.config.toml import dumps

# An optimizer of LR alone, which takes no steps (train/solving.py).
NEWTON = "newton"


@dataclass(frozen=True)
class TrainSettings:
    """How to train.

    `batch_size` 0 takes a 200th of the training rows, but 50 to 2000, so small data get enough steps. `patience` is the
    number of evaluations without a better validation log loss after which training stops. `average` evaluates and keeps
    a moving average of the weights over about that many epochs; -1 takes one epoch if the batch size is 0 too and there
    are fewer than 400,000 training rows, and none otherwise. The rate rises to `lr` over the first `warmup` steps; -1
    lets Adam's rise by 2e-5 a step, for half an epoch at most, if the model has a DNN, sub-networks or convolutions and
    the run starts anew.

    `dense_lr` is the rate of all weights outside of the tables; 0: it is `lr`. `row_clip` r cuts the gradient of each
    looked-up row w of vectors down to cnt max(r |w|, `row_clip_least`), cnt its occurrences in the batch; 0: none.
    `batch_scale` s trains with batches s times as large as all other settings are meant for, by the rule of
    train/large_batches.py, with -1 for `row_clip` as 1.

    L2 terms are lambda/2 times a sum of squares: `l2` of the looked-up rows, averaged over the batch (`l2_reduction`
    sum: as in the paper), `l2_full` of entire tables, `l2_kernels` of pairs' kernels, `l2_attention` of the attention's
    matrix W, `l2_weights` of all other weights (sub-networks, convolutions, DNN). No weight belongs to two of the last
    three; biases, gains of norms, and the attention's score and projection belong to none.

    `init` fills the tables, and `base_rate_start` starts the output's bias at the log-odds of the training rows' rate.
    `init_from` names an FM run or bundle that gives the initial vectors (and linear part, if the model has one);
    `continue_from` a run or bundle of the same model to continue. `precision` bf16 multiplies matrices in bfloat16 in
    training; weights, tables, optimiser and evaluation stay float32. `tables` says how several workers keep them: each
    a copy (replicated), each some rows (sharded), or copies as long as they fit (auto). `weights_precision` bf16 keeps
    sharded tables in bfloat16, which a step rounds up or down at random; the optimiser's state stays float32.
    `checkpoints` is how many of the newest are kept, besides that of the best step. `callbacks` names where log.jsonl
    goes too, with commas between them: tensorboard, mlflow, wandb; behind a colon, a folder or address. They are no
    part of what the run is.
    """

    batch_size: int = 0
    batch_scale: float = 1.0
    epochs: int = 20
    patience: int = 3
    lr: float = 2e-3
    dense_lr: float = 0.0
    optimizer: str = "adam"
    eps: float = 1e-8
    betas: tuple[float, float] = (0.9, 0.999)
    eps_mode: str = "textbook"
    sparse_mode: str = "paper"
    momentum: float = 0.9
    initial_accumulator: float = 0.1
    ftrl_l1: float = 0.0
    ftrl_l2: float = 0.0
    ftrl_beta: float = 1.0
    schedule: str = "constant"
    warmup: int = -1
    clip: float = 0.0
    row_clip: float = -1.0
    row_clip_least: float = 1e-5
    average: float = -1.0
    l2: float = 3e-3
    l2_reduction: str = "mean"
    l2_full: float = 0.0
    l2_weights: float = 0.0
    l2_kernels: float = 0.0
    l2_attention: float = 0.0
    init: str = "normal"
    init_scale: float = 0.01
    base_rate_start: bool = True
    init_from: str = ""
    continue_from: str = ""
    calibration: str = "platt"
    precision: str = "float32"
    weights_precision: str = "float32"
    graph: bool = True
    compile: bool = True
    shuffle_rows: int = 4_000_000
    hide: bool = True
    evaluations: int = 2
    checkpoint_minutes: float = 5.0
    checkpoints: int = 1
    tables: str = "auto"
    callbacks: str = ""

    def __post_init__(self) -> None:
        for name, least in (
            ("batch_size", 0),
            ("epochs", 1),
            ("patience", 0),
            ("evaluations", 1),
            ("shuffle_rows", 1),
            ("checkpoints", 1),
        ):
            _require(getattr(self, name) >= least, f"train.{name}", f"at least {least}", getattr(self, name))
        for name in ("lr", "eps"):
            _require(getattr(self, name) > 0, f"train.{name}", "positive", getattr(self, name))
        penalties = ("l2", "l2_full", "l2_weights", "l2_kernels", "l2_attention")
        _require(self.average >= 0 or self.average == -1, "train.average", "0 or more, or -1", self.average)
        _require(self.warmup >= -1, "train.warmup", "a number of steps, or -1", self.warmup)
        _require(1 <= self.batch_scale < math.inf, "train.batch_scale", "a number of at least 1", self.batch_scale)
        clips = 0 <= self.row_clip < math.inf or self.row_clip == -1
        _require(clips, "train.row_clip", "a number of 0 or more, or -1", self.row_clip)
        for name in ("dense_lr", "row_clip_least"):
            _require(0 <= getattr(self, name) < math.inf, f"train.{name}", "0 or more", getattr(self, name))
        for name in (*penalties, "clip", "init_scale", "checkpoint_minutes"):
            _require(getattr(self, name) >= 0, f"train.{name}", "0 or more", getattr(self, name))
        for name, known in (
            ("l2_reduction", ("mean", "sum")),
            ("calibration", ("none", "shift", "platt", "isotonic")),
            ("precision", ("float32", "bf16")),
            ("weights_precision", ("float32", "bf16")),
            ("tables", ("auto", "replicated", "sharded")),
        ):
            if getattr(self, name) not in known:
                raise ConfigError(unknown(f"train.{name}", getattr(self, name), known))

    @property
    def row_ratio(self) -> float:
        """The r by which rows are clipped; 0: they are not."""
        return self.row_clip if self.row_clip >= 0 else float(self.batch_scale > 1)


@dataclass(frozen=True)
class Config:
    """All settings of a run; with the data they determine it."""

    model: str = "pin"
    options: dict[str, Any] = field(default_factory=dict)
    train: TrainSettings = field(default_factory=TrainSettings)
    seed: int = 0
    device: str = "auto"

    def to_toml(self) -> str:
        head = {"seed": self.seed, "device": self.device}
        return dumps(head | {"model": {"name": self.model, **self.options}, "train": dataclasses.asdict(self.train)})


def load_config(
    path: Path | None = None,
    overrides: Sequence[str] = (),
    base: dict[str, Any] | None = None,
    start: dict[str, Any] | None = None,
) -> Config:
    """A config from a TOML file and `section.key=value` overrides, which win; unknown keys are refused.

    `start` holds values for settings that neither names, in sections as in the file, instead of the defaults.

    >>> load_config(overrides=["train.lr=3e-4", "model.name=fm", "model.dim=20"]).train.lr
    0.0003
    """
    values: dict[str, Any] = {}
    where = "the command line"
    if path is not None:
        where = str(path)
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"not a TOML file: {error} ({path})") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the config: {error} ({path})") from None
    for section, known in (start or {}).items():
        found = values.setdefault(section, known)
        if isinstance(known, dict) and isinstance(found, dict):
            values[section] = known | found
    for key, value in (base or {}).items():
        _set(values, key, value)
    for item in overrides:
        key, equals, text = item.partition("=")
        if not equals:
            raise ConfigError(f"--set takes KEY=VALUE, such as train.lr=3e-4, found '{item}'")
        _set(values, key.strip(), parse_value(text.strip()))
    return config_from(values, where)


def config_from(values: dict[str, Any], where: str) -> Config:
    """A config from nested dicts."""
    values = dict(values)
    model, train = values.pop("model", {}), values.pop("train", {})
    for key in values:
        if key not in ("seed", "device"):
            raise ConfigError(f"{unknown('setting', key, ('seed', 'device', 'model', 'train'))} ({where})")
    if not isinstance(model, dict) or not isinstance(train, dict):
        raise ConfigError(f"[model] and [train] are tables, such as [model] name = 'pin' ({where})")
    seed = values.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 1 << 63:
        raise ConfigError(f"seed must be a whole number of 0 or more, found {seed!r} ({where})")
    for name, text in (("device", values.get("device", "")), ("model.name", model.get("name", ""))):
        if not isinstance(text, str):
            raise ConfigError(f"{name} must be a word, found {text!r} ({where})")
    settings = _typed(train, TrainSettings, "train", where)
    options = {key: tuple(v) if isinstance(v, list) else v for key, v in model.items() if key != "name"}
    try:
        return Config(str(model.get("name", "pin")), options, TrainSettings(**settings), **values)
    except ConfigError as error:
        raise ConfigError(f"{error} ({where})") from None


def parse_value(text: str) -> Any:
    """A value in TOML's syntax; plain words are strings, and 1,2,3 is a list."""
    for candidate in (text, f"[{text}]") if "," in text else (text,):
        try:
            return tomllib.loads(f"value = {candidate}")["value"]
        except tomllib.TOMLDecodeError:
            pass
    return text


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    *sections, name = key.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise ConfigError(f"'{section}' is not a section ({key})")
    values[name] = value


def _typed(values: dict[str, Any], kind: type, section: str, where: str) -> dict[str, Any]:
    """Checks names and types against a dataclass; a whole number is accepted as a float."""
    hints = get_type_hints(kind)
    result = {}
    for key, value in values.items():
        if key not in hints:
            raise ConfigError(f"{unknown(f'{section} setting', key, hints)} ({where})")
        result[key] = coerce(value, hints[key], f"{section}.{key}", where)
    return result


def coerce(value: Any, hint: Any, name: str, where: str) -> Any:
    """A value converted to its type; raises ConfigError with the value found."""
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if hint in (int, float, str, bool):
        if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
            raise ConfigError(f"{name} must be {TYPES[hint]}, found {value!r} ({where})")
        return value
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"{name} must be a list, found {value!r} ({where})")
    kinds = get_args(hint) or (None,) * len(value)
    if len(kinds) != len(value):
        raise ConfigError(f"{name} must hold {len(kinds)} values, found {value!r} ({where})")
    return tuple(_number(item, kind, name, where) for item, kind in zip(value, kinds, strict=True))


def _number(item: Any, kind: Any, name: str, where: str) -> Any:
    if not isinstance(item, (int, float)) or isinstance(item, bool):
        raise ConfigError(f"{name} must hold numbers, found {item!r} ({where})")
    return item if kind is None else coerce(item, kind, name, where)


def _require(holds: bool, name: str, rule: str, found: Any) -> None:
    if not holds:
        raise ConfigError(f"{name} must be {rule}, found {found}")
