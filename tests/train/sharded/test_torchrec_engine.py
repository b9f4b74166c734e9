"""Without TorchRec, sharded tables are refused in one line, by whoever asks for them first."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fieldwise import cli
from fieldwise.config.errors import ConfigError
from fieldwise.train.sharded.torchrec_engine import torchrec


@pytest.fixture(autouse=True)
def no_torchrec(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "torchrec", None)
    torchrec.cache_clear()
    yield
    torchrec.cache_clear()


def test_the_command_line_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["train", str(tmp_path), "--tables", "sharded", "--workers", "2", "--out", str(tmp_path / "run")])
    assert end.value.code == 2
    told = capfd.readouterr().err
    assert told.count("\n") == 1
    assert "--tables sharded needs TorchRec, found no module torchrec; install it with `make distributed`" in told


def test_a_worker_says_so() -> None:
    with pytest.raises(ConfigError, match="--tables sharded needs TorchRec") as error:
        torchrec()
    assert "\n" not in str(error.value)
