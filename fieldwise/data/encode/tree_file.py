"""A file of trees -> XGBoost's booster, after a look at all that XGBoost would follow blindly.

XGBoost jumps to whatever child and reads whatever column a file names. A bundle may come from a stranger, and so every
tree must be one: each node but the first is the child of one node before it, splits are of columns that rows have, and
what leaves add is finite.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.config.errors import BundleError
from fieldwise.data.encode.tabular import Features, load_xgboost
from fieldwise.data.read.ubjson import loads

OBJECTIVE = "binary:logistic"
INT, LONG, FLOAT, BYTE = (np.dtype(kind) for kind in (">i4", ">i8", ">f4", ">u1"))
# The arrays of a tree that have a number for each node, and their types.
OF_NODES = {
    "left_children": (INT,),
    "right_children": (INT,),
    "parents": (INT,),
    "split_indices": (INT, LONG),
    "split_conditions": (FLOAT,),
    "split_type": (BYTE,),
    "default_left": (BYTE,),
    "base_weights": (FLOAT,),
    "loss_changes": (FLOAT,),
    "sum_hessian": (FLOAT,),
}
OF_CATEGORIES = {
    "categories": (INT,),
    "categories_nodes": (INT,),
    "categories_segments": (LONG,),
    "categories_sizes": (LONG,),
}
NO_PARENT = (-1, 2**31 - 1)
# Trees are packed to a quarter, at most to a fortieth; a file that unpacks to far more is not one of trees.
PACKED, MOST_PACKED = b"\x1f\x8b", 200
DAMAGED = (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError)


# Files that this process has made or checked, each with the columns it is for.
_trusted: set[bytes] = set()


def save_booster(booster: Any, path: Path, features: Features) -> None:
    """Writes the trees of this process, packed in a file .gz. Not by XGBoost, so that a full disk gives the same error
    as with every other file."""
    data = bytes(booster.save_raw(raw_format="ubj"))
    # No time of day in it: the same trees are the same file.
    path.write_bytes(gzip.compress(data, 6, mtime=0) if path.suffix == ".gz" else data)
    _trusted.add(_name(data, features))


def load_booster(path: Path, features: Features, purpose: str, settings: dict[str, Any] | None = None) -> Any:
    """The trees of a file, which must be trees over these columns."""
    xgboost = load_xgboost(purpose)
    try:
        data = _unpacked(path.read_bytes())
        name = _name(data, features)
        # A look at a tree takes longer than loading it, and a comparison loads its own trees several times.
        if name not in _trusted:
            _check(loads(data), features)
            _trusted.add(name)
        booster = xgboost.Booster(settings)
        # The bytes that were checked, not the file once more.
        booster.load_model(bytearray(data))
    except (*DAMAGED, xgboost.core.XGBoostError) as error:
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise BundleError(f"the trees are damaged: {reason.splitlines()[0][:300]} ({path})") from None
    return booster


def _unpacked(data: bytes) -> bytes:
    """The bytes of a file, packed or not."""
    if not data.startswith(PACKED):
        return data
    most = MOST_PACKED * len(data)
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        found = file.read(most)
        if file.read(1):
            raise ValueError(f"the file unpacks to more than {most:,} bytes")
    return found


def _name(data: bytes, features: Features) -> bytes:
    """A digest of a file and of what its check depends on."""
    columns = repr(features.described).encode()
    return hashlib.blake2b(columns, key=hashlib.blake2b(data).digest()).digest()


def _check(file: dict[str, Any], features: Features) -> None:
    learner, columns = file["learner"], len(features.kinds)
    facts, booster = learner["learner_model_param"], learner["gradient_booster"]
    _same("objective", learner["objective"]["name"], OBJECTIVE)
    _same("booster", booster["name"], "gbtree")
    _same("num_feature", _whole(facts, "num_feature"), columns)
    for name, most in (("num_class", 0), ("num_target", 1)):
        if _whole(facts, name, most) > most:
            raise ValueError(f"{name} must be {most}, found {facts[name]}")
    score = float(str(facts["base_score"]).strip("[]"))
    if not 0 < score < 1:
        raise ValueError(f"base_score must lie between 0 and 1, found {score}")
    if learner.get("feature_types") != features.kinds or learner.get("feature_names"):
        raise ValueError(f"feature_types must be those of the {columns} columns, which have no feature_names")
    model = booster["model"]
    _check_rounds(model)
    limits = np.array(features.categories_of, dtype=np.int64)
    for number, tree in enumerate(model["trees"]):
        try:
            _check_tree(tree, limits)
        except ValueError as error:
            raise ValueError(f"{error} (tree {number})") from None


def _check_rounds(model: dict[str, Any]) -> None:
    """One tree a round, all of them of the one output, and no categories but those that are their own ids."""
    count = len(model["trees"])
    _same("num_trees", _whole(model["gbtree_model_param"], "num_trees"), count)
    _same("num_parallel_tree", _whole(model["gbtree_model_param"], "num_parallel_tree", 1), 1)
    if [*model["tree_info"]] != [0] * count:
        raise ValueError(f"tree_info must be {count} times 0")
    if [*model.get("iteration_indptr", range(count + 1))] != [*range(count + 1)]:
        raise ValueError(f"iteration_indptr must count from 0 to {count}")
    if any(len(part) for part in model.get("cats", {}).values()):
        raise ValueError("cats must be empty")


def _check_tree(tree: dict[str, Any], limits: NDArray[np.int64]) -> None:
    facts = tree["tree_param"]
    nodes = len(tree["left_children"])
    if nodes < 1 or _whole(facts, "num_nodes") != nodes:
        raise ValueError(f"num_nodes must be {nodes}, as many as there are left_children, found {facts['num_nodes']}")
    _same("num_feature", _whole(facts, "num_feature"), len(limits))
    if _whole(facts, "size_leaf_vector", 1) > 1 or _whole(facts, "num_deleted", 0):
        raise ValueError("a leaf has one number, and no node is deleted")
    for name, kinds in (OF_NODES | OF_CATEGORIES).items():
        found = tree[name]
        if not isinstance(found, np.ndarray) or found.dtype not in kinds:
            raise ValueError(f"{name} must be an array of {kinds[0].name}")
        if name in OF_NODES and len(found) != nodes:
            raise ValueError(f"{name} must have a number for each of {nodes} nodes, found {len(found)}")
    inner = _check_children(tree)
    splits = tree["split_indices"]
    if splits.min() < 0 or splits.max() >= len(limits):
        raise ValueError(f"split_indices must be below {len(limits)}, the columns of a row")
    for name in ("split_type", "default_left"):
        if tree[name].max() > 1:
            raise ValueError(f"{name} must be 0 or 1, found {tree[name].max()}")
    _check_categories(tree, inner, limits)
    plain = tree["split_conditions"][tree["split_type"] == 0]
    if not np.isfinite(plain).all() or not np.isfinite(tree["base_weights"]).all():
        raise ValueError("leaves and bounds must be finite numbers")


def _check_children(tree: dict[str, Any]) -> NDArray[np.bool_]:
    """Which nodes have children. XGBoost numbers children after their parents, so that there is no way round."""
    left, right, parents = (tree[name] for name in ("left_children", "right_children", "parents"))
    inner: NDArray[np.bool_] = (left != -1) | (right != -1)
    owners = np.tile(np.flatnonzero(inner), 2)
    children = np.concatenate([left[inner], right[inner]])
    if not np.array_equal(np.sort(children), np.arange(1, len(left))) or not (children > owners).all():
        raise ValueError("children must be nodes after their parent, each node but the first the child of one")
    if parents[0] not in NO_PARENT or not np.array_equal(parents[children], owners):
        raise ValueError("parents must be those that have the children")
    return inner


def _check_categories(tree: dict[str, Any], inner: NDArray[np.bool_], limits: NDArray[np.int64]) -> None:
    """Sets of categories, one after the other, of the nodes that split by them, and below their columns' sizes."""
    values, nodes, starts, sizes = (tree[name] for name in OF_CATEGORIES)
    asked = tree["split_type"] == 1
    if not np.array_equal(asked, inner & (limits[tree["split_indices"]] > 0)):
        raise ValueError("split_type must be 1 where a column of categories is split, and nowhere else")
    if not np.array_equal(nodes, np.flatnonzero(asked)):
        raise ValueError("categories_nodes must be the nodes that split by categories")
    if len(sizes) != len(nodes) or sizes.min(initial=0) < 0 or sizes.max(initial=0) > len(values):
        raise ValueError("categories_sizes must be one for each of categories_nodes, within the categories")
    if sizes.sum() != len(values) or not np.array_equal(starts, np.cumsum(sizes) - sizes):
        raise ValueError("categories_segments must follow one another up to the last of the categories")
    most = np.repeat(limits[tree["split_indices"][nodes]], sizes)
    if not ((values >= 0) & (values < most)).all():
        raise ValueError("categories must be ids of the columns that are split")


def _whole(facts: dict[str, Any], name: str, default: int | None = None) -> int:
    """XGBoost writes these numbers as texts."""
    text = facts[name] if default is None else facts.get(name, str(default))
    if not isinstance(text, str) or not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ValueError(f"{name} must be a whole number, found {str(text)[:40]!r}")
    return int(text)


def _same(name: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise ValueError(f"{name} must be {expected}, found {str(found)[:40]}")
