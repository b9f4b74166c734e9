"""Look-alikes of the paper's four data sets and the settings of models on them, shared by several studies.

`--data DIR` with DIR/criteo, DIR/avazu, DIR/ipinyou or DIR/appstore, each as `fieldwise prepare` leaves it, takes those
instead; appstore stands for the paper's Huawei. Size `paper` has Table 4's rows, `medium` 10,000,000 of each set; both
have the shapes of Table 5 and want a GPU (`--device cuda`). `small` is for two cores: vectors of 10, and DNNs of a
fifth of the width. Below `paper` the sets with rare positives have more of them, or too few would be held out.

recipes/SET/MODEL.toml (recipes/world in the repository) holds the shape, the learning rate, the start of the vectors
and their L2, which benchmarks/world_search.py chose with equal effort for every model
(docs/lab/2026-11-16-world-search.md).
"""

from __future__ import annotations

import importlib.util
import tomllib
from collections.abc import Sequence
from pathlib import Path

from fieldwise.data.encode.prepare import Split
from fieldwise.reporting.result_tables import Column, high, low
from fieldwise.studies import sources
from fieldwise.studies.study import Plan, Row, Setup, Source, by_seed

SETS = ("criteo", "avazu", "ipinyou", "appstore")
BASELINES = ("lr", "gbdt", "fm", "ffm", "ccpm", "fnn", "afm", "deepfm")
PNNS = ("ipnn", "kpnn", "pin")
MODELS = (*BASELINES, "kfm", "nifm", *PNNS)
DEEP = ("fnn", "ccpm", "deepfm", *PNNS)
ROWS = {
    "small": {"criteo": 16_000, "avazu": 30_000, "ipinyou": 40_000, "appstore": 40_000},
    "medium": dict.fromkeys(SETS, 10_000_000),
    "paper": {"criteo": 99_600_000, "avazu": 40_400_000, "ipinyou": 19_500_000, "appstore": 57_000_000},
}
RATES = {
    "small": {"ipinyou": 0.03, "appstore": 0.05},
    "medium": {"ipinyou": 0.01, "appstore": 0.02},
    "paper": {"ipinyou": 0.0007, "appstore": 0.008},
}
# The paper's test rows, and validation rows, of which it has none.
SHARES = {
    "criteo": (0.8625, 0.01, 0.1275),
    "avazu": (0.78, 0.02, 0.2),
    "ipinyou": (0.74, 0.05, 0.21),
    "appstore": (0.85, 0.05, 0.1),
}
# The larger ones are one pass.
EPOCHS = {"small": 6, "medium": 1, "paper": 1}
SMALLER: dict[str, Row] = {
    "pin": {"model.subnet": [20, 3]},
    "ccpm": {"model.channels": [50], "model.hidden": [50, 50, 50]},
    "afm": {"model.attention": 16},
}
RECIPES = Path(__file__).parent / "recipes"
COLUMNS = (
    Column("auc", "AUC", ".4f", high, "auc_sd"),
    Column("log_loss", "Log loss", ".5f", low, "log_loss_sd"),
    Column("valid_log_loss", "Valid log loss", ".5f", low),
)


def models() -> list[str]:
    """All models; GBDT only where XGBoost is installed."""
    return [name for name in MODELS if name != "gbdt" or importlib.util.find_spec("xgboost")]


def source(setup: Setup, data: str, seed: int = 0) -> Source:
    """The rows of a look-alike, or the user's prepared folder of real ones."""
    if setup.data is not None and (setup.data / data / "data.json").exists():
        real = (setup.data / data).resolve()
        return lambda folder: _link(folder, real)
    split = Split(SHARES[data]) if setup.size == "paper" else None
    return sources.world(data, ROWS[setup.size][data], seed, split=split, rate=RATES[setup.size].get(data))


def _link(folder: Path, real: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.symlink_to(real)


def settings(model: str, data: str, size: str, dim: int = 0, hidden: Sequence[int] = ()) -> Row:
    """How a model is trained on a look-alike, as its recipe says; with other vectors or another DNN, if asked."""
    if model == "gbdt":
        return {"model.name": model}
    recipe = tomllib.loads((RECIPES / data / f"{model}.toml").read_text(encoding="utf-8"))
    found: Row = {f"{section}.{key}": value for section in recipe for key, value in recipe[section].items()}
    found |= SMALLER.get(model, {}) if size == "small" else {"train.precision": "bf16"}
    if size == "small":
        found |= {"train.batch_size": 0} | ({"model.dim": 10} if "model.dim" in found and model != "ffm" else {})
        if model in DEEP and model != "ccpm":
            found["model.hidden"] = [80 if data == "appstore" else 140] * 3
    if dim and "model.dim" in found and model != "ffm":
        found["model.dim"] = dim
    if model == "nifm":
        found["model.subnet"] = [2 * found["model.dim"], 1]
    if hidden and model in DEEP:
        found["model.hidden"] = list(hidden)
    return found | {"train.epochs": EPOCHS[size]}


def plan(setup: Setup, cases: Sequence[tuple[Row, Row]]) -> Plan:
    """Runs of (keys, settings) for every seed, each on the data set `keys["data"]`; every seed has its own world."""
    named = [(keys, str(keys["data"]), settings) for keys, settings in cases]
    return by_seed(setup, named, lambda data, seed: source(setup, data, seed))
