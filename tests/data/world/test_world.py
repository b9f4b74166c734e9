"""The world's log is reproducible, its truth is the truth, and its signal is made of what it says."""

import gzip
import itertools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from fieldwise.config.errors import ConfigError, DataError, FieldwiseError
from fieldwise.data.world import KINDS, PARTS, Log, World, write_log


@pytest.fixture(scope="module")
def worlds():
    return {kind: World(kind, seed=3) for kind in KINDS}


@pytest.fixture(scope="module")
def demo(worlds):
    return worlds["demo"]


@pytest.fixture(scope="module")
def log(demo):
    return demo.log(60_000, seed=1)


def auc(labels, scores):
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores)] = np.arange(len(scores))
    positive = labels == 1
    return (ranks[positive].mean() - (positive.sum() - 1) / 2) / (~positive).sum()


def same(a: Log, b: Log) -> bool:
    return a.table.equals(b.table) and np.array_equal(a.probability, b.probability)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_logs_its_fields_with_the_right_truth_and_rate(worlds, kind):
    world = worlds[kind]
    log = world.log(60_000)
    assert log.table.column_names == ["click", *world.field_names]
    assert set(pc.unique(log.table["click"]).to_pylist()) <= {0, 1}
    tolerance = 0.02 if world.base_rate > 0.1 else 0.06  # few and heavy-tailed positives: a noisier mean
    assert log.probability.mean() == pytest.approx(world.base_rate, rel=tolerance)
    np.testing.assert_allclose(world.probability(log.table), log.probability, rtol=1e-5)
    for field in world.fields.values():
        assert len(field.values) == field.size


def test_kinds_have_the_shapes_of_the_data_sets(worlds):
    assert {kind: len(world.field_names) for kind, world in worlds.items()} == {
        "demo": 11,
        "criteo": 39,
        "avazu": 22,
        "ipinyou": 16,
        "appstore": 9,
        "repeat": 11,
    }
    criteo = worlds["criteo"].log(5000).table
    assert all(pa.types.is_integer(criteo[f"I{i}"].type) for i in range(1, 14))
    assert criteo["I1"].null_count > 0
    assert pc.all(pc.match_substring_regex(criteo["C1"], "^[0-9a-f]{8}$")).as_py()
    avazu = worlds["avazu"].log(5000).table["hour"].to_pylist()
    assert (avazu[0], avazu[-1]) == (14102100, 14103023)
    assert avazu == sorted(avazu)


def test_frequencies_fall_and_owners_are_consistent(log):
    counts = sorted(pc.value_counts(log.table["user"]).field("counts").to_pylist(), reverse=True)
    assert counts[0] > 10 * counts[len(counts) // 2]
    for owned in ("category", "advertiser", "genres"):
        pairs = log.table.group_by(["item", owned]).aggregate([])
        assert pairs.num_rows == pc.count_distinct(log.table["item"]).as_py()
    assert 0.02 < log.table["price"].null_count / log.table.num_rows < 0.04


def test_the_same_seed_gives_the_same_world_and_log(demo):
    again = World("demo", seed=3)
    assert again.active_pairs == demo.active_pairs
    assert same(again.log(3000, seed=5), demo.log(3000, seed=5))
    assert not same(demo.log(3000, seed=6), demo.log(3000, seed=5))
    assert not same(World("demo", seed=4).log(3000, seed=5), demo.log(3000, seed=5))


@pytest.mark.parametrize("chunk", [7_777, 50_000, 60_000, 200_000])
def test_chunks_are_the_log_however_it_is_cut(demo, log, chunk):
    chunks = list(demo.chunks(60_000, seed=1, chunk=chunk))
    assert [len(c) for c in chunks[:-1]] == [chunk] * (len(chunks) - 1)
    assert pa.concat_tables([c.table for c in chunks]).equals(log.table)
    assert np.array_equal(np.concatenate([c.probability for c in chunks]), log.probability)


def test_the_truth_is_calibrated(log):
    labels = log.table["click"].to_numpy()
    for rows in np.array_split(np.argsort(log.probability), 10):
        expected = log.probability[rows]
        deviation = np.sqrt((expected * (1 - expected)).sum()) / len(rows)
        assert abs(labels[rows].mean() - expected.mean()) < 4 * deviation


@pytest.mark.parametrize(("kind", "base_rate"), [("demo", 0.5), ("demo", 0.02), ("ipinyou", 0.1), ("appstore", 0.2)])
def test_base_rate_as_asked(kind, base_rate):
    assert World(kind, base_rate=base_rate).log(50_000).probability.mean() == pytest.approx(base_rate, rel=0.03)


@pytest.mark.parametrize("kind", KINDS)
def test_about_a_third_of_the_pairs_interact_half_of_them_bilinear(worlds, kind):
    world = worlds[kind]
    pairs = list(itertools.combinations(world.field_names, 2))
    assert set(world.active_pairs) <= set(pairs)
    assert len(set(world.active_pairs)) == len(world.active_pairs)
    assert len(world.active_pairs) / len(pairs) == pytest.approx(0.3, abs=0.02)
    bilinear = sum(effect.part == "bilinear" for effect in world.effects)
    assert abs(2 * bilinear - len(world.active_pairs)) <= 1


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_most_of_the_signal_is_in_the_pairs(seed):
    world = World("demo", seed)
    log = world.log(40_000)
    labels = log.table["click"].to_numpy()
    oracle = auc(labels, log.probability)
    linear = auc(labels, world.probability(log.table, parts=("linear",)))
    assert 0.82 < oracle < 0.89
    assert 0.6 < linear < oracle - 0.1
    for part in PARTS:
        others = auc(labels, world.probability(log.table, parts=[other for other in PARTS if other != part]))
        assert others < oracle
        assert part not in ("bilinear", "net") or others < oracle - 0.02


def test_categories_are_born_and_die(demo):
    first = set(demo.log(40_000, last_day=0).table["item"].to_pylist())
    final = set(demo.log(40_000, first_day=9).table["item"].to_pylist())
    assert 0.2 < len(first - final) / len(first) < 0.4
    assert 0.2 < len(final - first) / len(final) < 0.4
    still = World("demo", days=1).log(1000)
    assert still.table["day"].to_pylist() == [0] * 1000


def test_days_are_in_order_and_as_asked(demo):
    days = demo.log(2000, first_day=4, last_day=5).table["day"].to_numpy()
    assert days.tolist() == [4] * 1000 + [5] * 1000


@pytest.mark.parametrize("kind", KINDS)
def test_candidates_share_the_context_and_differ_in_the_item(worlds, kind):
    world = worlds[kind]
    slate = world.candidates(30, 8, day=2, seed=1)
    assert slate.table.column_names == ["request", *world.field_names]
    np.testing.assert_allclose(world.probability(slate.table), slate.probability, rtol=1e-5)
    item = {"criteo": "C14", "avazu": "C14", "ipinyou": "creative", "appstore": "app"}.get(kind, "item")
    context = "user" if "user" in world.field_names else world.field_names[0]
    for request in range(30):
        rows = slate.table.filter(pc.equal(slate.table["request"], request))
        assert pc.count_distinct(rows[item]).as_py() == 8
        assert pc.count_distinct(rows[context], mode="all").as_py() == 1
    assert same(slate, world.candidates(30, 8, day=2, seed=1))


def test_the_truth_of_strange_rows(demo, worlds):
    table = demo.log(50).table

    def edit(name, cells):
        return table.set_column(table.column_names.index(name), name, pa.array(cells))

    for name, cells in {
        "user": ["nobody"] * 50,
        "item": [None] * 50,
        "hour": ["x", None] * 25,
        "price": ["cheap", "", None, "1e9", "-3"] * 10,
        "genres": ["drama|unheard", "", None, "unheard", "drama"] * 10,
    }.items():
        found = demo.probability(edit(name, cells))
        assert ((found > 0) & (found < 1)).all()
    same_set = demo.probability(edit("genres", ["drama"] * 50)) - demo.probability(edit("genres", ["drama|?"] * 50))
    assert np.abs(same_set).max() == 0
    as_text = pa.table({name: table[name].cast(pa.string()) for name in table.column_names})
    np.testing.assert_allclose(demo.probability(as_text), demo.probability(table), rtol=1e-6)
    assert len(demo.probability(table[:0])) == 0
    with pytest.raises(DataError, match="column 'city' is missing"):
        demo.probability(table.drop_columns("city"))


def pairs_of(table):
    return [*zip(table["user"].to_pylist(), table["item"].to_pylist(), strict=True)]


def test_users_return_to_items_and_only_the_pair_tells_their_taste(worlds, demo):
    """In the world of repeats a pair's own past predicts what its two sides do not."""
    world = worlds["repeat"]
    log, others = world.log(40_000, seed=1), pairs_of(demo.log(40_000, seed=1).table)
    labels, rest = log.table["click"].to_numpy(), world.probability(log.table, parts=PARTS)
    returned, past, sums = np.zeros(len(log), bool), np.zeros(len(log)), {}
    for row, pair in enumerate(pairs_of(log.table)):
        returned[row], past[row] = pair in sums, sums.get(pair, 0.0)
        sums[pair] = sums.get(pair, 0.0) + labels[row] - rest[row]
    assert returned.mean() > 0.45 > 2 * (1 - len(set(others)) / len(others))
    late = returned & (np.arange(len(log)) > 20_000)
    assert auc(labels[late], log.probability[late]) > auc(labels[late], rest[late]) + 0.08
    assert auc(labels[late], past[late]) > 0.7


def test_the_taste_of_a_pair_is_no_side_s_own(worlds):
    returns = worlds["repeat"].returns
    users, items = (grid.ravel() for grid in np.meshgrid(np.arange(300), np.arange(300), indexing="ij"))
    taste = returns.taste(users, items).reshape(300, 300)
    assert taste.std() == pytest.approx(returns.repeats.deviation, rel=0.02)
    for axis in (0, 1):
        assert taste.mean(axis).std() == pytest.approx(returns.repeats.deviation / 300**0.5, rel=0.2)
    nobody = np.full(5, returns.users.size)
    assert not returns.taste(nobody, np.arange(5)).any()


@pytest.mark.parametrize("kind", ["demo", "avazu", "repeat"])
def test_a_world_may_live_for_months(kind):
    world = World(kind, days=70)
    log = world.log(7000, first_day=60)
    np.testing.assert_allclose(world.probability(log.table), log.probability, rtol=1e-5)
    day = "hour" if kind == "avazu" else "day"
    assert log.table[day].to_pylist() == sorted(log.table[day].to_pylist())
    assert pc.count_distinct(log.table[day]).as_py() >= 10
    assert len(world.candidates(3, 4, day=69)) == 12


@pytest.mark.parametrize("ending", ["csv", "tsv", "csv.gz", "tsv.gz", "parquet"])
@pytest.mark.parametrize("kind", ["demo", "criteo"])
def test_what_is_written_is_the_log(worlds, tmp_path, kind, ending):
    world, path = worlds[kind], tmp_path / f"log.{ending}"
    write_log(world, 3000, path, seed=2, truth=True)
    if ending == "parquet":
        found = pq.read_table(path)
    else:
        options = pacsv.ParseOptions(delimiter="," if "csv" in ending else "\t")
        text = pacsv.ConvertOptions(column_types={name: pa.string() for name in world.field_names})
        found = pacsv.read_csv(path, parse_options=options, convert_options=text)
    expected = world.log(3000, seed=2)
    assert found.column_names == [*expected.table.column_names, "true_probability"]
    assert found["click"].to_pylist() == expected.table["click"].to_pylist()
    np.testing.assert_array_equal(found["true_probability"].to_numpy(), expected.probability)
    np.testing.assert_allclose(world.probability(found), expected.probability, rtol=1e-5)
    before = path.read_bytes()
    write_log(world, 3000, path, seed=2, truth=True)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_txt_is_the_raw_layout_without_a_header(worlds, tmp_path):
    write_log(worlds["criteo"], 100, tmp_path / "log.txt.gz")
    lines = gzip.decompress((tmp_path / "log.txt.gz").read_bytes()).decode().splitlines()
    assert len(lines) == 100
    assert {len(line.split("\t")) for line in lines} == {40}
    assert {line[:2] for line in lines} == {"0\t", "1\t"}


def test_nothing_is_left_of_a_failed_write(demo, tmp_path, monkeypatch):
    path = tmp_path / "log.csv"
    path.write_text("the old one")
    chunks = demo.chunks

    def broken(rows, seed, **days):
        yield from chunks(rows, seed, **days)
        raise RuntimeError("power cut")

    monkeypatch.setattr(demo, "chunks", broken)
    for ending in ("csv", "csv.gz", "parquet"):
        with pytest.raises(RuntimeError, match="power cut"):
            write_log(demo, 100, path.with_suffix(f".{ending}"))
    assert [file.name for file in tmp_path.iterdir()] == ["log.csv"]
    assert path.read_text() == "the old one"


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda world, path: World("crieto"), "unknown kind 'crieto'; did you mean 'criteo'"),
        (lambda world, path: World(base_rate=0.0), "base_rate must lie between 0 and 1, found 0.0"),
        (lambda world, path: World(base_rate=1.0), "base_rate must lie between 0 and 1, found 1.0"),
        (lambda world, path: World(days=0), "days must be at least 1, found 0"),
        (lambda world, path: World(seed=-1), "seed must not be negative, found -1"),
        (lambda world, path: world.log(0), "rows must be at least 1, found 0"),
        (lambda world, path: world.log(5, seed=-2), "seed must not be negative, found -2"),
        (lambda world, path: world.log(5, first_day=3, last_day=10), "days must lie within 0..9, found 3..10"),
        (lambda world, path: list(world.chunks(-1)), "rows must be at least 1, found -1"),
        (lambda world, path: list(world.chunks(5, chunk=0)), "chunk must be at least 1, found 0"),
        (lambda world, path: world.candidates(1, 100_000), "per_request must lie within 1..769, found 100000"),
        (lambda world, path: world.candidates(1, 2, day=10), "day must lie within 0..9, found 10"),
        (lambda world, path: write_log(world, 0, path / "a.csv"), "rows must be at least 1, found 0"),
        (lambda world, path: write_log(world, 5, path / "a.xls"), "expected a name ending in .csv, .tsv"),
        (lambda world, path: write_log(world, 5, path / "a.parquet.gz"), "expected a name ending in .csv, .tsv"),
        (lambda world, path: write_log(world, 5, "/dev/null/a.csv"), "a.csv: File exists"),
        (lambda world, path: write_log(world, 5, "/dev/null/a.parquet"), "a.parquet: File exists"),
    ],
)
def test_mistakes_get_one_line(demo, tmp_path, mistake, message):
    with pytest.raises(FieldwiseError) as caught:
        mistake(demo, tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, (ConfigError, DataError))
    assert list(tmp_path.iterdir()) == []


def test_shares_of_networks_and_of_active_pairs():
    bilinear, both, networks = (World("demo", networks=share) for share in (0.0, 0.5, 1.0))
    assert {effect.part for effect in bilinear.effects} == {"linear", "bilinear", "rule"}
    assert {effect.part for effect in networks.effects} == {"linear", "net", "rule"}
    assert both.log(500).table == World("demo").log(500).table
    spreads = []
    for world in (bilinear, both, networks):
        log = world.log(20_000)
        assert log.probability.mean() == pytest.approx(world.base_rate, abs=0.02)
        spreads.append(np.std(np.log(log.probability / (1 - log.probability))))
    assert max(spreads) / min(spreads) < 1.2
    few, most = (len(World("demo", active=share).active_pairs) for share in (0.1, 0.9))
    assert few < len(both.active_pairs) < most
    with pytest.raises(ConfigError, match="networks must lie within"):
        World("demo", networks=1.5)
