"""Continuing a trained network on new rows: its weights and optimiser state move into tables that have grown.

Tables hold the rows of all fields one after the other, so a field that grows shifts those behind it: rows are found by
field and id. The row of a new id starts as a copy of the field's `other`, which stood for that value until now, so that
growing alone changes no prediction (of a set: as long as it holds one value without an id). So does the row of an id
whose value has expired, whether a new value has it already or not.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fieldwise.bundle import bundle
from fieldwise.bundle.bundle import Bundle
from fieldwise.config.errors import BundleError, ConfigError
from fieldwise.config.settings import NEWTON, Config
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.kinds.kind import Ids
from fieldwise.data.schema import FIRST, OTHER, Layout
from fieldwise.nn.embedding import Table
from fieldwise.nn.model import Model


def settings_of(path: Path) -> dict[str, Any]:
    """The settings of a run or bundle to continue from, in the form that `load_config` takes."""
    file = bundle.locate(path) / "config.toml"
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
        train = values["train"] | {"init_from": "", "continue_from": str(path)}
        # A fit of all rows at once cannot go on; its weights can, in steps.
        if train["optimizer"] == NEWTON:
            del train["optimizer"]
        return values | {"train": train}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleError(f"cannot read the run's settings: {error} ({file})") from None


def load_origin(config: Config) -> Bundle:
    """The trained network that a config continues from; its model and options cannot change."""
    path = Path(config.train.continue_from)
    if config.train.init_from:
        raise ConfigError("--continue-from keeps all weights and --init-from replaces some; leave one out")
    origin = bundle.load(path)
    if not isinstance(origin.model, Model):
        way_out = "train anew on all rows"
        raise ConfigError(f"--continue-from needs a network, found {origin.config.model}; {way_out} ({path})")
    before = origin.config.options
    changes = [("name", origin.config.model, config.model)]
    changes += [(key, before[key], found) for key, found in config.options.items() if key in before]
    for key, expected, found in changes:
        if found != expected:
            way_out = "leave it out, or train anew"
            raise ConfigError(f"--continue-from keeps model.{key} = {expected}, found {found}; {way_out} ({path})")
    return origin


def check_same_ids(encoder: Encoder, origin: Bundle) -> None:
    """Refuses new data in which an id of the origin means another value, unless the folders in between say that its
    value expired; there may be more ids."""
    way_out = f"prepare the new rows with `fieldwise prepare ... --continue-from {origin.path}`"
    ours, theirs = (one.names for one in (encoder, origin.own_encoder))
    if ours != theirs:
        odd = next((name for name in [*theirs, *ours] if (name in ours) != (name in theirs)), "")
        found = f"'{odd}' is a field of one of them alone" if odd else "found them in another order"
        raise ConfigError(f"--continue-from needs the fields of the first data, {found}; {way_out}")
    if encoder.schema.history != origin.schema.history or encoder.trees != origin.own_encoder.trees:
        raise ConfigError(f"--continue-from needs the history and the trees of the first data; {way_out}")
    renewed = _renewed(encoder, origin.own_encoder)
    for code, old, ids in zip(encoder.codes, origin.own_encoder.codes, renewed, strict=True):
        if not (code.grew_from(old) or (ids is not None and code.lives_on(old, ids))):
            raise ConfigError(f"--continue-from: field '{code.field.name}' has other ids there; {way_out}")


def given_up(encoder: Encoder, origin: Encoder) -> list[Ids]:
    """For each field of the layout the origin's ids whose values have expired since: their rows start anew."""
    found = [np.empty(0, dtype=np.int32) if ids is None else _numbers(ids) for ids in _renewed(encoder, origin)]
    sizes = [code.size for code in origin.codes]
    found = [ids[ids < size] for ids, size in zip(found, sizes, strict=True)]
    return found + [np.empty(0, dtype=np.int32)] * (encoder.layout.fields - len(found))


def _renewed(encoder: Encoder, origin: Encoder) -> list[NDArray[np.bool_] | None]:
    """For each code which of its ids, from 2 on, mean something else than at the origin, as the chain of folders says;
    None without words, or where the origin is not in the chain."""
    lifetimes = encoder.lifetimes
    folder = lifetimes.folder_of(origin.codes) if lifetimes else -1
    if lifetimes is None or folder < 0:
        return [None] * len(encoder.codes)
    # A field that shares another's ids has what is said of these.
    return [lifetimes.renewed(code.field.shares or code.field.name, folder) for code in encoder.codes]


def _numbers(renewed: NDArray[np.bool_]) -> Ids:
    return (FIRST + np.flatnonzero(renewed)).astype(np.int32)


@torch.no_grad()
def take_weights(
    model: Model, layout: Layout, origin: Model, gone: Sequence[Ids] | None = None
) -> dict[Tensor, Tensor]:
    """Copies the origin's weights to the model; returns for each table (N, D) the old row of each row, -1 for none.

    Tables over the fields may have grown; everything else must have kept its shape. So a model whose rows are of
    another kind, such as pairs of values, is refused when fields have grown. Of each field the ids in `gone` start
    anew; these too are nothing for such a model.
    """
    gone = gone or [np.empty(0, dtype=np.int32)] * layout.fields
    before = origin.state_dict()
    found: dict[Tensor, Tensor] = {}
    for name, table in ((name, part) for name, part in model.named_modules() if isinstance(part, Table)):
        old, (own, numbers) = before.pop(f"{name}.weight"), table.here
        was = start = torch.arange(len(table.weight))
        if table.whole.apart == layout.apart:
            theirs = origin.get_submodule(name)
            assert isinstance(theirs, Table)
            was, start = _old_rows(table.layout, theirs.layout, [gone[field] for field in table.places])
        elif any(map(len, gone)):
            way_out = "train anew on all rows"
            raise ConfigError(
                f"--continue-from: this model has rows of pairs of values, some of which expired; {way_out}"
            )
        else:
            _check_shape(f"{name}.weight", old, table.weight)
        here = slice(numbers.start, numbers.stop)
        found[own] = was[here]
        own.copy_(old[start[here]])
    ours = model.state_dict()
    for name, old in before.items():
        _check_shape(name, old, ours[name])
        ours[name].copy_(old)
    return found


def _check_shape(name: str, old: Tensor, ours: Tensor) -> None:
    if old.shape != ours.shape:
        shapes = f"{name} has the shape {tuple(old.shape)} and would need {tuple(ours.shape)}"
        raise ConfigError(f"--continue-from: this model cannot take new ids: {shapes}; train anew on all rows")


def _old_rows(layout: Layout, before: Layout, gone: Sequence[Ids]) -> tuple[Tensor, Tensor]:
    """For each row of a grown table (N,): its old row, -1 for none, and the old row it starts as a copy of."""
    was, start = [], []
    fields = zip(layout.sizes, before.sizes, before.offsets, gone, strict=True)
    for size, known, offset, anew in (own for field, own in enumerate(fields) if layout.owners[field] == field):
        ids = torch.arange(size)
        kept = ids < known
        kept[torch.from_numpy(anew).long()] = False
        was.append(torch.where(kept, offset + ids, -1))
        start.append(offset + torch.where(kept, ids, OTHER))
    return torch.cat(was), torch.cat(start)
