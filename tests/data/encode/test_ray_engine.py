"""The same folder from a Ray cluster of two nodes, whatever dies; and its errors, one line each."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fieldwise import cli
from fieldwise.config.errors import FieldwiseError, WorkerLost
from fieldwise.data.encode import ray_engine
from fieldwise.data.encode.ray_engine import on_ray
from fieldwise.data.recipes.asked import Asked
from fieldwise.data.recipes.prepared import prepare_asked
from fieldwise.data.schema import history_settings
from tests.data.encode.test_shards import content, write_log

# Ray and what it needs leave open sockets and files to their end.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    # Workers import these tests, wherever pytest was started.
    paths = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
        found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        yield found
        found.shutdown()


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("logs")
    return [write_log(folder / f"day{day}.tsv", 200, day) for day in range(6)]


def asked(files: list[Path]) -> Asked:
    history = history_settings("user", ["time=when", "half_life=3000"])
    return Asked(files, label="click", history=history, split_by="when")


def test_a_node_that_dies_costs_its_shards_only(tmp_path: Path, cluster: Any, logs: list[Path]) -> None:
    prepare_asked(asked(logs), tmp_path / "one")
    doomed = [cluster.add_node(num_cpus=1)]
    said: list[str] = []

    def progress(step: str, rows: int) -> None:
        said.append(step)
        if step == "reading" and doomed:
            # Its other shards are under way.
            cluster.remove_node(doomed.pop(), allow_graceful=False)

    prepare_asked(asked(logs), tmp_path / "ray", progress=progress, engine=partial(on_ray, cluster.address))
    assert content(tmp_path / "ray") == content(tmp_path / "one")
    assert not doomed
    steps = ["counting", "reading", "counting", "fitting", "sorting", "replaying", "gathering", "encoding"]
    assert [step for place, step in enumerate(said) if said[place - 1 : place] != [step]] == steps


def dies(marker: Path, times: int, item: int) -> int:
    """Kills its process in the middle of item 3, so many times."""
    died = len(list(marker.parent.glob(f"{marker.name}*")))
    if item == 3 and died < times:
        (marker.parent / f"{marker.name}{died}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item * item


def test_a_worker_that_dies_is_replaced_until_it_died_too_often(
    tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray_engine, "RETRIES", 1)
    with on_ray(cluster.address) as engine:
        assert list(engine.map(partial(dies, tmp_path / "once", 1), range(6))) == [0, 1, 4, 9, 16, 25]
        with pytest.raises(WorkerLost, match=r"2 workers in a row .* the same command goes on where it was"):
            list(engine.map(partial(dies, tmp_path / "ever", 9), range(6)))
        with pytest.raises(FieldwiseError, match=r"all nodes must see the same files, .*/gone is not there \(the node"):
            engine.check([tmp_path / "gone"])
    assert capfd.readouterr().out == ""


def test_files_are_named_from_the_folder_of_the_command(
    tmp_path: Path, cluster: Any, logs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers of a cluster were started elsewhere."""
    monkeypatch.chdir(logs[0].parent)
    here = asked([Path(log.name) for log in logs])
    prepare_asked(here, tmp_path / "one")
    prepare_asked(here, tmp_path / "ray", engine=partial(on_ray, cluster.address))
    assert content(tmp_path / "ray") == content(tmp_path / "one")


def test_an_error_of_a_shard_is_the_line_of_one_machine(
    tmp_path: Path, cluster: Any, logs: list[Path], capfd: pytest.CaptureFixture[str]
) -> None:
    lines = logs[4].read_text().splitlines()
    wrong = {
        "label": [*lines[:50], "2" + lines[50][1:], *lines[51:]],
        "cells": [*lines[:70], lines[70] + "\tmore", *lines[71:]],
    }
    for name, rows in wrong.items():
        odd = tmp_path / f"{name}.tsv"
        odd.write_text("\n".join(rows) + "\n")
        said = []
        for more in ([], ["--engine", "ray", "--ray-address", cluster.address]):
            files = [*map(str, logs[:4]), str(odd), str(logs[5])]
            out = tmp_path / f"{name}-out"
            with pytest.raises(SystemExit) as end:
                cli.main(["prepare", *files, "--label", "click", "--split-by", "none", "--out", str(out), *more])
            assert end.value.code == 2
            said.append(capfd.readouterr())
            assert not out.exists()
        assert said[1].err == said[0].err
        assert f"{odd}, line {51 if name == 'label' else 71}" in said[0].err
        assert said[1].out == ""


def refused(*options: str) -> str:
    with pytest.raises(FieldwiseError) as error, on_ray(*options):
        pass
    return str(error.value)


def test_addresses_at_which_there_is_no_cluster() -> None:
    pytest.importorskip("ray")
    assert "no Ray cluster at 127.0.0.1:1: Connection refused; start one with `ray start --head`" in refused(
        "127.0.0.1:1"
    )
    assert "takes HOST:PORT of a cluster that this machine is in, found 'there'" in refused("there")


def test_without_ray_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert refused() == "--engine ray needs Ray, which is not installed: pip install fieldwise[cluster]"


def test_a_ctrl_c_while_ray_starts_ends_what_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []

    def init(**options: Any) -> None:
        raise KeyboardInterrupt

    half = SimpleNamespace(is_initialized=lambda: False, init=init, shutdown=lambda: ended.append(True))
    monkeypatch.setitem(sys.modules, "ray", half)
    with pytest.raises(KeyboardInterrupt), on_ray(workers=1):
        pass
    assert ended == [True]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--engine", "spark"], "unknown --engine 'spark'; available: local, ray"),
        (["--ray-address", "a:1"], "--ray-address is for --engine ray, found --engine local; leave it out"),
        (["--engine", "ray", "--sequence", "user by user"], "--engine ray does not make sequences yet"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, logs: list[Path], capsys: pytest.CaptureFixture[str], options: list[str], line: str
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["prepare", str(logs[0]), "--label", "click", "--out", str(tmp_path / "out"), *options])
    assert line in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
