"""Bundles as a stranger may write them: any content, and digests that fit it."""

from __future__ import annotations

import gzip
import json
import shutil
import struct

import numpy as np

from fieldwise.bundle import bundle
from fieldwise.bundle.members import Blend

# How XGBoost types the arrays of a tree.
FLOATS = ("base_weights", "loss_changes", "split_conditions", "sum_hessian")
INTS = ("left_children", "right_children", "parents", "split_indices", "categories", "categories_nodes")
LONGS = ("categories_segments", "categories_sizes")
BYTES = ("default_left", "split_type")
TYPES = {">f4": b"d", ">i4": b"l", ">i8": b"L", "|u1": b"U", ">f8": b"D"}


def copied(source, out):
    """A bundle to spoil."""
    shutil.copytree(source, out)
    return out


def reseal(folder):
    """Makes the digests those of the files as they are, of members first."""
    if (folder / Blend.file).is_file():
        for member in sorted((folder / bundle.MEMBERS).iterdir()):
            bundle._seal(member)
    bundle._seal(folder)


def edited_json(file, change):
    values = json.loads(file.read_text())
    change(values)
    file.write_text(json.dumps(values))


def trees_in(file):
    """The content of a file of trees; arrays of a tree are numpy arrays of XGBoost's types."""
    import xgboost

    booster = xgboost.Booster()
    booster.load_model(bytearray(unpacked(file)))
    values = json.loads(bytes(booster.save_raw("json")))
    for tree in values["learner"]["gradient_booster"]["model"]["trees"]:
        for names, kind in ((FLOATS, ">f4"), (INTS, ">i4"), (LONGS, ">i8"), (BYTES, "|u1")):
            tree.update({name: np.array(tree[name], dtype=kind) for name in names})
    return values


def edited_trees(file, change):
    """Writes a file of trees after `change` has seen its first tree and all of it."""
    values = trees_in(file)
    change(values["learner"]["gradient_booster"]["model"]["trees"][0], values)
    packed = gzip.compress if file.suffix == ".gz" else bytes
    file.write_bytes(packed(ubjson(values)))


def unpacked(file):
    """The bytes of a file of trees."""
    return gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()


def ubjson(value):
    """Values in the bytes that XGBoost reads."""
    if isinstance(value, dict):
        return b"{" + b"".join(_text(key) + ubjson(part) for key, part in value.items()) + b"}"
    if isinstance(value, np.ndarray):
        return b"[$" + TYPES[value.dtype.str] + b"#" + _length(len(value)) + value.tobytes()
    if isinstance(value, list):
        return b"[#" + _length(len(value)) + b"".join(map(ubjson, value))
    if isinstance(value, str):
        return b"S" + _text(value)
    return b"l" + struct.pack(">i", value) if isinstance(value, int) else b"d" + struct.pack(">f", value)


def _length(number):
    return b"L" + struct.pack(">q", number)


def _text(text):
    return _length(len(text.encode())) + text.encode()


def _inner(tree):
    return int(np.flatnonzero(tree["left_children"] != -1)[-1])


def _set(name, value, place=0):
    def change(tree, _values):
        tree[name][place] = value

    return change


def _cut(name):
    def change(tree, _values):
        tree[name] = tree[name][:-1]

    return change


def _cycle(tree, _values):
    last = _inner(tree)
    tree["left_children"][last] = last


def _loop(tree, _values):
    tree["left_children"][_inner(tree)] = 0


def _leaf(value):
    def change(tree, _values):
        tree["split_conditions"][np.flatnonzero(tree["left_children"] == -1)] = value

    return change


def _wide(tree, _values):
    tree["left_children"] = tree["left_children"].astype(">i8")


def _model(name, value):
    def change(_tree, values):
        values["learner"]["gradient_booster"]["model"][name] = value

    return change


def _numeric(tree, _values):
    # Of the columns of the log the third is a number.
    tree["split_indices"][np.flatnonzero(tree["split_type"])[0]] = 2


def _learner(name, value):
    def change(_tree, values):
        values["learner"][name] = value

    return change


def _parameter(name, value):
    def change(_tree, values):
        values["learner"]["learner_model_param"][name] = value

    return change


def _nodes(value):
    def change(tree, _values):
        tree["tree_param"]["num_nodes"] = value

    return change


def _category(name, value):
    def change(tree, _values):
        tree[name][-1] = value

    return change


# What a stranger may do to trees, and what the refusal says.
TREES = {
    "a child far away": (_set("left_children", 1_000_000_000), "children"),
    "a child behind the last": (_set("right_children", 1_000_000), "children"),
    "a negative child": (_set("left_children", -1_000_000), "children"),
    "a node below itself": (_cycle, "children"),
    "the root below a node": (_loop, "children"),
    "a split of no column": (_set("split_indices", 1_000_000_000), "split_indices"),
    "a negative split": (_set("split_indices", -5), "split_indices"),
    "other parents": (_set("parents", 3, 1), "parents"),
    "too few children": (_cut("right_children"), "right_children"),
    "too few splits": (_cut("split_conditions"), "split_conditions"),
    "children of another type": (_wide, "left_children"),
    "a leaf that is no number": (_leaf(np.nan), "finite"),
    "an infinite leaf": (_leaf(np.inf), "finite"),
    "more nodes than there are": (_nodes("100000000"), "num_nodes"),
    "nodes that are no number": (_nodes("many"), "num_nodes"),
    "categories behind the last": (_category("categories_segments", 1_000_000_000), "categories"),
    "more categories than there are": (_category("categories_sizes", 1_000_000_000), "categories"),
    "a category of no value": (_category("categories", 2_000_000_000), "categories"),
    "categories where there are none": (_numeric, "split_type"),
    "columns of other types": (_learner("feature_types", []), "feature_types"),
    "trees of other outputs": (_model("tree_info", [1_000_000] * 4), "tree_info"),
    "rounds behind the last": (_model("iteration_indptr", [0, 1, 2, 3, 1_000_000]), "iteration_indptr"),
    "another number of columns": (_parameter("num_feature", "2"), "num_feature"),
    "several classes": (_parameter("num_class", "1000000"), "num_class"),
    "a start that is no number": (_parameter("base_score", "[NAN]"), "base_score"),
}
