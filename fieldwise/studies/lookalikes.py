"""Look-alikes of the paper's four data sets and the settings of models on them, shared by several studies.

With `--data DIR`, prepared folders DIR/criteo, DIR/avazu, DIR/ipinyou and DIR/appstore replace them; appstore stands
for the paper's Huawei. `medium` has 2,000,000 rows of each, which needs a GPU (`--device cuda`: minutes; table6 would
take a core more than a day). iPinYou has more positives than its .07 %, or hardly any would be held out; vectors have
10 numbers and DNNs a fifth of the paper's width. No dropout and a moving average over half an epoch were best on
validation rows for nearly all models; learning rate, start and L2 are in chosen.py.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from fieldwise.reporting.result_tables import Column, high, low
from fieldwise.studies import sources
from fieldwise.studies.chosen import CHOSEN
from fieldwise.studies.study import Plan, Row, Setup, Source, by_seed

SETS = ("criteo", "avazu", "ipinyou", "appstore")
BASELINES = ("lr", "gbdt", "fm", "ffm", "ccpm", "fnn", "afm", "deepfm")
PNNS = ("ipnn", "kpnn", "pin")
MODELS = (*BASELINES, "kfm", "nifm", *PNNS)
DEEP = ("fnn", "ccpm", "deepfm", *PNNS)
ROWS = {
    "small": {"criteo": 16_000, "avazu": 30_000, "ipinyou": 40_000, "appstore": 40_000},
    "medium": dict.fromkeys(SETS, 2_000_000),
    "paper": dict.fromkeys(SETS, 20_000_000),
}
RATES = {
    "small": {"ipinyou": 0.03, "appstore": 0.05},
    "medium": {"ipinyou": 0.01, "appstore": 0.02},
    "paper": {"ipinyou": 0.003, "appstore": 0.02},
}
EPOCHS = {"small": 6, "medium": 10, "paper": 10}
DIM = 10
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
    return sources.world(data, ROWS[setup.size][data], seed, rate=RATES[setup.size].get(data))


def _link(folder: Path, real: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.symlink_to(real)


def settings(model: str, data: str, size: str, dim: int = DIM, hidden: Sequence[int] = ()) -> Row:
    """The settings of a model on a look-alike: the paper's architectures at a fifth of their width."""
    if model == "gbdt":
        return {"model.name": model}
    found: Row = {"model.name": model, "train.epochs": EPOCHS[size], "train.average": 0.5}
    found["train.lr"], found["train.init_scale"], found["train.l2"] = CHOSEN[data, model]
    if model != "lr":
        found["model.dim"] = 4 if model == "ffm" else dim
    if model == "nifm":
        found["model.subnet"] = [2 * dim, 1]
    if model == "pin":
        found["model.subnet"] = [20, 3]
    if model == "ipnn" and data != "appstore":
        # By validation rows: a norm of the products helps only if the DNN has none.
        found["model.product_norm"] = False
    if model in DEEP:
        width = 80 if data == "appstore" else 140
        found |= {"model.hidden": list(hidden) or [width] * 3, "model.dropout": 0.0}
    if model == "ccpm":
        found |= {"model.channels": [50], "model.hidden": [50, 50, 50]}
    elif model in DEEP and data == "appstore":
        found["model.norm"] = "none"
    return found


def plan(setup: Setup, cases: Sequence[tuple[Row, Row]]) -> Plan:
    """Runs of (keys, settings) for every seed, each on the data set `keys["data"]`; every seed has its own world."""
    named = [(keys, str(keys["data"]), settings) for keys, settings in cases]
    return by_seed(setup, named, lambda data, seed: source(setup, data, seed))
