"""What every registered model keeps, found by discovery: a new model needs no test of its own to be held to it."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from fieldwise import models
from fieldwise.config.errors import ConfigError
from fieldwise.data.schema import FIRST, Layout
from fieldwise.models import Model
from fieldwise.nn.embedding import POOLS, Linear
from fieldwise.optim import Adam
from fieldwise.parts.interactions import Pairwise

LAYOUTS = {
    "plain": Layout.of((5, 7, 4)),
    "sets": Layout((5, 7, 4, 6), (1, 3, 1, 2)),
    "interpolated": Layout((5, 7, 4, 6), (1, 4, 2, 1), (1, 3)),
    "sequences": Layout((5, 4, 5), (1, 1, 3), like=(0, 1, 0), sequences=((2,),)),
}
# Options of these names, whoever has them, are smaller here than by default: the rules do not depend on them.
SMALL = {"dim": 6, "hidden": (24, 24), "subnet": (8, 5), "channels": (24,), "dropout": 0.0}
SMALL |= {"maps": (8, 8), "attention": 8, "blocks": (24, 24), "gate_hidden": (8,), "fm_hidden": (8,)}
SMALL |= {"made": 3, "kept": 3, "fm_rank": 3, "crosses": 2}

every_model = pytest.mark.parametrize("name", models.MODELS)
every_layout = pytest.mark.parametrize("kind", LAYOUTS)


def made(name: str, layout: Layout, seed: int = 0, **settings: Any) -> Model:
    torch.manual_seed(seed)
    known = models.options(name)
    return models.build(name, layout, {key: value for key, value in SMALL.items() if key in known} | settings)


def drawn_ids(layout: Layout, rows: int = 60, seed: int = 0) -> Tensor:
    """Rows (B, C) in which every category occurs; a set has one to `width` members, unused columns are -1.

    An interpolated number has its anchor's id, and in some places the next one's; missing and other stand alone.
    """
    generator = torch.Generator().manual_seed(seed)
    columns = []
    for field, (size, width) in enumerate(zip(layout.sizes, layout.widths, strict=True)):
        first = torch.arange(rows)[torch.randperm(rows, generator=generator)] % size
        members = 1 + torch.randint(width, (rows,), generator=generator)
        if field in layout.ordered:
            nearest = [torch.where(place < members, first, (first + 1).clamp(max=size - 1)) for place in range(width)]
            columns += [first, *(torch.where(first < FIRST, -1, own) for own in nearest[1:])]
            continue
        columns += [torch.where(place < members, (first + place) % size, -1) for place in range(width)]
    return torch.stack(columns, dim=1).int()


def different(model: Model, ids: Tensor) -> int:
    """How many logits of these rows differ by more than rounding."""
    logits = model.double().eval()(ids)
    assert logits.isfinite().all()
    return logits.round(decimals=9).unique().numel()


def loss_of(model: Model, ids: Tensor, labels: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(model(ids), labels)


@every_model
@every_layout
def test_logits_are_one_finite_number_a_row(name: str, kind: str) -> None:
    model, ids = made(name, LAYOUTS[kind]), drawn_ids(LAYOUTS[kind])
    for rows in (ids, ids[:1], ids.long()):
        logits = model(rows)
        assert logits.shape == (len(rows),)
        assert logits.dtype == torch.float32
        assert logits.isfinite().all()
    assert model(ids).unique().numel() > 10


@every_model
@every_layout
def test_every_parameter_gets_a_gradient(name: str, kind: str) -> None:
    # So many rows that every two categories of two fields meet: poly2 has a row of its table for each.
    model, ids = made(name, LAYOUTS[kind]), drawn_ids(LAYOUTS[kind], rows=600)
    loss_of(model, ids, torch.arange(len(ids)) % 3 * 0.5).backward()
    for path, parameter in model.named_parameters():
        assert parameter.grad is not None, path
        assert parameter.grad.to_dense().isfinite().all(), path
        assert parameter.grad.to_dense().any(), path
        if parameter.grad.is_sparse:
            assert parameter.grad.to_dense().any(dim=1).all(), f"a row of {path}"


@every_model
@every_layout
def test_a_rows_score_does_not_depend_on_its_neighbours(name: str, kind: str) -> None:
    model, ids = made(name, LAYOUTS[kind]).double().eval(), drawn_ids(LAYOUTS[kind])
    together = model(ids)
    alone = torch.cat([model(row[None]) for row in ids])
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-12)
    torch.testing.assert_close(model(ids.flip(0)), together.flip(0), rtol=0, atol=1e-12)


@every_model
def test_a_sets_score_does_not_depend_on_the_order_of_its_members(name: str) -> None:
    layout = Layout((5, 7), (1, 3))
    model = made(name, layout).double().eval()
    one, other, longer = model(torch.tensor([[2, 3, 6, -1], [2, 6, 3, -1], [2, 6, 3, 0]]))
    assert one.item() == pytest.approx(other.item(), abs=1e-12)
    assert one.item() != pytest.approx(longer.item(), abs=1e-6)


@pytest.mark.parametrize("name", [name for name in models.MODELS if "sequence" in models.options(name)])
def test_a_network_takes_a_sequence_in_every_way(name: str) -> None:
    layout = LAYOUTS["sequences"]
    ids = torch.tensor([[2, 3, 4, 2, 3], [2, 3, 3, 2, 4], [2, 3, 4, -1, -1]])
    for pool in POOLS:
        model = made(name, layout, sequence=pool).double().eval()
        torch.manual_seed(0)
        for parameter in model.embedding.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        row, turned, shorter = model.embedding(ids)
        # Only a mean does not know the order, and only the newest not what came before.
        assert (pool == "mean") == torch.allclose(row, turned, atol=1e-9)
        assert (pool == "last") == torch.allclose(row, shorter, atol=1e-9)


@every_model
def test_weights_come_back_from_a_file(name: str) -> None:
    layout = LAYOUTS["sets"]
    model, other, ids = made(name, layout).eval(), made(name, layout, seed=1).eval(), drawn_ids(layout)
    assert not torch.equal(model(ids), other(ids))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(model(ids), other(ids))


@every_model
def test_the_same_seed_gives_the_same_weights(name: str) -> None:
    one, same, other = (dict(made(name, LAYOUTS["plain"], seed).named_parameters()) for seed in (3, 3, 4))
    assert list(one) == list(same)
    assert all(torch.equal(one[path], same[path]) for path in one)
    assert any(not torch.equal(one[path], other[path]) for path in one)


@every_model
def test_an_unknown_option_is_refused_with_the_nearest_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"model {name}: unknown option 'no_such_thing'"):
        models.build(name, LAYOUTS["plain"], {"no_such_thing": 1})
    for option in models.options(name):
        misspelt = option[:-1] + "_" + option[-1]
        with pytest.raises(ConfigError, match=f"model {name}: unknown option '{misspelt}'; did you mean '{option}'"):
            models.build(name, LAYOUTS["plain"], {misspelt: 1})


@every_model
def test_an_option_of_another_type_is_refused(name: str) -> None:
    for option, default in models.options(name).items():
        for wrong in (None, {}, 1.5 if isinstance(default, str) else "words"):
            with pytest.raises(ConfigError, match=f"model.{option} must be .*, found .* .model {name}"):
                models.build(name, LAYOUTS["plain"], {option: wrong})


@every_model
def test_an_impossible_size_or_choice_is_refused(name: str) -> None:
    for option, default in models.options(name).items():
        wrong = {tuple: (0,), str: "no such choice", float: -1.0}.get(type(default))
        if wrong is not None:
            with pytest.raises(ConfigError):
                models.build(name, LAYOUTS["plain"], {option: wrong})


@every_model
def test_defaults_written_out_change_nothing(name: str) -> None:
    torch.manual_seed(0)
    bare = models.build(name, LAYOUTS["plain"]).eval()
    torch.manual_seed(0)
    written = models.build(name, LAYOUTS["plain"], models.options(name)).eval()
    ids = drawn_ids(LAYOUTS["plain"], rows=8)
    assert torch.equal(bare(ids), written(ids))


@every_model
def test_two_fields_are_enough(name: str) -> None:
    ids = torch.cartesian_prod(torch.arange(4), torch.arange(3))
    assert different(made(name, Layout.of((4, 3))), ids) == 12


def below(kind: type) -> set[str]:
    """The names of all classes made from this one."""
    own = kind.__subclasses__()
    return {each.__name__ for each in own}.union(*map(below, own))


@every_model
def test_one_field_is_enough_or_a_part_says_why_not(name: str) -> None:
    refusal = ""
    try:
        assert different(made(name, Layout.of((9,))), torch.arange(9)[:, None]) == 9
    except ConfigError as error:
        refusal = str(error)
    if refusal:
        part = refusal.split()[0]
        assert part in below(Pairwise)
        assert refusal == f"{part} needs at least two fields, found 1"


@every_model
@pytest.mark.parametrize("kind", ["interpolated"])  # which has fields of every kind
def test_a_model_can_be_exported_for_any_number_of_rows(name: str, kind: str) -> None:
    model, ids = made(name, LAYOUTS[kind]).eval(), drawn_ids(LAYOUTS[kind])
    exported = torch.export.export(model, (ids[:7],), dynamic_shapes=({0: torch.export.Dim("rows")},)).module()
    for rows in (ids, ids[:1]):
        torch.testing.assert_close(exported(rows), model(rows))


PLANTED = Layout.of((6, 8))


def planted(rows: int = 2000) -> tuple[Tensor, Tensor]:
    """Labels that two fields decide together: which halves both are in, and a little of each by itself."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.stack([torch.randint(size, (rows,), generator=generator) for size in PLANTED.sizes], dim=1)
    together = torch.where(ids[:, 0] % 2 == ids[:, 1] % 2, 2.0, -2.0)
    alone = 0.2 * (ids[:, 0] - 2.5) - 0.1 * (ids[:, 1] - 3.5)
    chance = torch.rand(rows, generator=generator)
    return ids.int(), (chance < torch.sigmoid(together + alone)).float()


def trained(model: Model, steps: int = 60, batch: int = 250) -> tuple[float, float]:
    """Log loss on all planted rows before and after some steps."""
    ids, labels = planted()
    optimizer = Adam(model.parameters(), lr=0.03)
    before = loss_of(model, ids, labels).item()
    for step in range(steps):
        rows = torch.arange(step * batch, (step + 1) * batch) % len(ids)
        optimizer.zero_grad()
        loss_of(model, ids[rows], labels[rows]).backward()
        optimizer.step()
    return before, loss_of(model.eval(), ids, labels).item()


@pytest.fixture(scope="module")
def additive() -> float:
    """What the fields reach each by itself."""
    return trained(Model(None, linear=Linear(PLANTED)), steps=300, batch=2000)[1]


@every_model
def test_a_model_learns_planted_data(name: str, additive: float) -> None:
    model = made(name, PLANTED)
    before, after = trained(model)
    assert after < before - 0.01
    if len(model.branches) > 0:
        assert after < additive - 0.1
