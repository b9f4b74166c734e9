"""The link that is served leads to a whole bundle at every moment."""

import contextlib
import os
import threading

import pytest

from fieldwise.follow import versions


def folder_of(path, word):
    path.mkdir(parents=True)
    (path / "bundle.json").write_text(word)
    return path


def test_a_link_is_replaced(tmp_path):
    one, two = (folder_of(tmp_path / "work" / name, name) for name in ("0001", "0002"))
    link = tmp_path / "live"
    versions.serve(link, one)
    assert not os.path.isabs(os.readlink(link))
    versions.serve(link, two)
    assert link.resolve() == two
    assert sorted(path.name for path in tmp_path.iterdir()) == ["live", "work"]


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_folder_makes_room_and_is_kept(tmp_path, monkeypatch, exchanges):
    if not exchanges:
        monkeypatch.setattr(versions, "_exchanged", lambda one, other: False)
    link, target = folder_of(tmp_path / "live", "first"), folder_of(tmp_path / "0001", "second")
    versions.serve(link, target)
    assert (link / "bundle.json").read_text() == "second"
    assert (tmp_path / "live.before" / "bundle.json").read_text() == "first"


class Killed(BaseException):
    pass


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("at", range(3))
def test_killed_while_a_folder_makes_room(tmp_path, monkeypatch, exchanges, at):
    link, target = folder_of(tmp_path / "live", "first"), folder_of(tmp_path / "0001", "second")
    calls = []

    def counted(of):
        def call(*given):
            calls.append(of)
            if len(calls) == at + 1:
                raise Killed
            return of(*given)

        return call

    with monkeypatch.context() as patch:
        exchanged = versions._exchanged if exchanges else lambda one, other: False
        patch.setattr(versions, "_exchanged", counted(exchanged))
        patch.setattr(versions.os, "rename", counted(os.rename))
        with contextlib.suppress(Killed):
            versions.serve(link, target)
        assert link.exists() or (not exchanges and at == 2)
    versions.serve(link, target)
    assert (link / "bundle.json").read_text() == "second"
    assert (tmp_path / "live.before" / "bundle.json").read_text() == "first"


def test_a_reader_finds_a_bundle_at_every_moment(tmp_path):
    targets = [folder_of(tmp_path / "work" / f"{number:04d}", "whole") for number in range(2)]
    link, missed = folder_of(tmp_path / "live", "whole"), []
    versions_done = threading.Event()

    def read():
        while not versions_done.is_set():
            try:
                assert (link / "bundle.json").read_text() == "whole"
            except OSError as error:
                missed.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(200):
        versions.serve(link, targets[number % 2])
    versions_done.set()
    reader.join()
    assert missed == []


def test_which_version_is_served(tmp_path):
    target = folder_of(versions.bundle_of(tmp_path / "work", 3), "three")
    link = tmp_path / "live"
    versions.serve(link, target)
    assert versions.served(link, tmp_path / "work") == 3
    versions.serve(link, folder_of(tmp_path / "else" / "0003", "other"))
    assert versions.served(link, tmp_path / "work") is None
    assert versions.served(target, tmp_path / "work") is None
