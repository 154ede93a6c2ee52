"""The byte form of a state: one form a state, and nothing else is read."""

from __future__ import annotations

import contextlib
import json
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cfsl.errors import CfslError, DataFlowError
from cfsl.harness.sandbox.counting import StateSize, sizes
from cfsl.harness.sandbox.values import Converter, laid_out, strides_of
from cfsl.harness.sandbox.wire import DTYPES, decoded, encoded, structure_of
from cfsl.learners.base import TaskInfo

INFO = TaskInfo(
    image_shape=(1, 8, 8), labels=15, nss=3, n_way=5, k_shot=1, cci=1, overwrite=False, seed=3
)
WEIGHTS = {"net": {"a": torch.rand(3, 4), "b": torch.rand(3, 4)}}


def packed(state) -> bytes:
    return encoded(Converter(WEIGHTS, INFO).to_tree(state))


def there_and_back(state):
    return Converter(WEIGHTS, INFO).from_tree(decoded(packed(state), ("net/a", "net/b")))


def written(structure: object, values: bytes = b"") -> bytes:
    text = json.dumps(structure, separators=(",", ":")).encode()
    return struct.pack("<I", len(text)) + text + values


def test_a_state_survives_the_wire():
    state = {
        "own": torch.rand(2, 3).half(),
        "list": [torch.zeros(0, 5), None, (1, -0.5, True), -(2**63)],
        "weights": WEIGHTS["net"]["a"],
        "info": INFO,
        "": {},
    }
    back = there_and_back(state)
    assert torch.equal(back["own"], state["own"]) and back["own"].dtype == torch.half
    assert back["list"][0].shape == (0, 5) and back["list"][1:] == state["list"][1:]
    assert back["weights"] is WEIGHTS["net"]["a"] and back["info"] is INFO
    assert list(back) == list(state)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_on_the_list_crosses_to_the_bit(dtype):
    ones = torch.ones(2, 3).to(getattr(torch, dtype)).t()
    back = there_and_back(ones)
    assert torch.equal(back, ones) and back.dtype == ones.dtype


def test_what_was_unpacked_shares_no_memory():
    state = {"x": torch.zeros(4)}
    data = packed(state)
    Converter({}).from_tree(decoded(data))["x"].fill_(1)
    assert not decoded(data)["x"].content.tobytes().strip(b"\0")


def test_weights_and_images_arrive_as_they_lay_in_memory():
    tree = {
        "net": {
            "a": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
            "b": torch.rand(3, 2).t(),
            "c": torch.rand(2, 1).expand(2, 3),
            "d": torch.zeros(0, 2),
        }
    }
    back = laid_out(there_and_back(tree), strides_of(tree))["net"]
    assert all(torch.equal(back[name], tree["net"][name]) for name in "abcd")
    assert back["a"].stride() == tree["net"]["a"].stride()
    assert back["b"].stride() == (1, 2) and back["c"].stride() == (3, 1)


@pytest.mark.parametrize(
    "structure",
    [
        None,
        [],
        {},
        "text",
        7,
        ["pickle", "gASV"],
        ["tensor", "float32"],
        ["tensor", "load", [1]],
        ["tensor", "complex64", [0]],
        ["tensor", "float32", [-1]],
        ["tensor", "float32", [0.5]],
        ["tensor", "float32", [True]],
        ["tensor", "float32", [2]],
        ["tensor", "float32", [2**62, 2**62]],
        ["tensor", "float32", [0] * 40],
        ["tensor", ["float32"], [0]],
        ["weights", "net/c"],
        ["weights", ["net/a"]],
        ["dict", [["a", ["none"]], ["a", ["none"]]]],
        ["dict", [[7, ["none"]]]],
        ["dict", [["a" * 65, ["none"]]]],
        ["dict", [["a"]]],
        ["dict", {"a": ["none"]}],
        ["list", ["none"]],
        ["list", None],
        ["tuple", [None]],
        ["none", 1],
        ["int"],
        ["float"],
        ["bool"],
        ["list", [["none"]] * 200_000],
    ],
)
def test_what_is_not_on_the_list_is_refused(structure):
    with pytest.raises(CfslError):
        decoded(written(structure), ("net/a",))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"abc",
        b"\xff\xff\xff\xff",
        struct.pack("<I", 9) + b"{}",
        struct.pack("<I", 9) + b'["none"] ',
        struct.pack("<I", 9) + b'["n\\u006fne"]'[:9],
        struct.pack("<I", 8) + b'["none"]' + b"more",
        struct.pack("<I", 3) + b"NaN",
        struct.pack("<I", 5000) + b"1" * 5000,
        struct.pack("<I", 100_000) + b"[" * 100_000,
        struct.pack("<I", 2) + b"\xc3\xa9",
        written(["bool"], struct.pack("<Q", 2)),
        written(["tensor", "bool", [1]], b"\x02"),
    ],
)
def test_what_is_not_written_in_the_one_way_is_refused(data):
    with pytest.raises(CfslError):
        decoded(data)


def test_a_state_may_be_32_deep_and_no_deeper():
    tree = None
    for _ in range(32):
        tree = [tree]
    assert decoded(encoded(tree)) == tree
    with pytest.raises(CfslError, match="32 deep"):
        decoded(encoded([tree]))
    with pytest.raises(DataFlowError, match="more than 32 deep"):
        Converter({}).to_tree([tree])


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({(1, 2): 0}, "keys are names"),
        ({7: 0}, "keys are names"),
        ([2**63], r"state\[0\] is a number of 64 bits"),
        ({"a": ["text"]}, r"state\['a'\]\[0\] is a str"),
        ({"a": torch.ones(1, dtype=torch.complex64)}, r"state\['a'\] is a tensor of complex64"),
        ({"a": torch.eye(2).to_sparse()}, r"state\['a'\] is a tensor of sparse_coo"),
        ({"a": torch.empty(1, device="meta")}, "is a tensor on 'meta'"),
        (np.ones(2), "state is a ndarray"),
    ],
)
def test_a_leaf_that_may_not_cross_is_refused_by_its_path(state, says):
    with pytest.raises(DataFlowError, match=says):
        packed(state)


# Whatever arrives: an error of ours, or a state

NAMES = st.text(max_size=5)
STATES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(NAMES.filter(lambda name: name.isprintable()), inner, max_size=4)
    ),
    max_leaves=10,
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([*DTYPES, "tensor", "dict", "list", "tuple", "weights", "info", "net/a"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=20,
)


@settings(deadline=None, max_examples=300)
@given(STATES)
def test_a_state_has_one_byte_form(state):
    data = encoded(state)
    assert encoded(decoded(data)) == data and repr(decoded(data)) == repr(state)


@settings(deadline=None, max_examples=500)
@given(JSON, st.binary(max_size=40))
def test_whatever_structure_arrives_is_a_state_or_an_error_of_ours(structure, values):
    with contextlib.suppress(CfslError):
        decoded(written(structure, values), ("net/a",))


@settings(deadline=None, max_examples=500)
@given(st.binary(max_size=80), st.integers(0, 60))
def test_whatever_bytes_arrive_are_a_state_or_an_error_of_ours(data, at):
    sound = bytearray(encoded({"a": [1, 2.0, None], "b": (True,)}))
    sound[at : at + len(data)] = data
    for hostile in (data, bytes(sound)):
        with contextlib.suppress(CfslError):
            assert encoded(decoded(hostile)) == hostile


# What it costs

USUAL = [packed({"n": 0}), packed({"n": 1, "x": torch.zeros(2, 3)})]


def test_values_cost_what_they_take_and_the_usual_structure_nothing():
    states = [packed({"n": 5}), packed({"n": -1, "x": torch.ones(2, 3)})]
    assert sizes(states, USUAL) == [StateSize(8, 8), StateSize(8 + 24, 8)]


def test_references_cost_nothing():
    state = packed({"w": WEIGHTS["net"]["a"], "i": INFO, "none": None, "e": torch.zeros(0, 7)})
    assert sizes([state], [state]) == [StateSize(0, 0)]


def test_only_counts_and_labels_are_bookkeeping():
    state = packed([torch.zeros(3, dtype=torch.int64), torch.zeros(3), torch.zeros(3).char(), 1.0])
    assert sizes([state], [state]) == [StateSize(24 + 12 + 3 + 8, 24 + 8)]


@pytest.mark.parametrize(
    "state",
    [
        {"m": 1, "x": torch.zeros(2, 3)},
        {"x": torch.zeros(2, 3), "n": 1},
        {"n": 1.0, "x": torch.zeros(2, 3)},
        {"n": 1, "x": torch.zeros(3, 2)},
        {"n": 1, "x": torch.zeros(6)},
        {"n": 1, "x": torch.zeros(2, 3), "y": None},
        {"n": 1, "x": torch.zeros(2, 3), "y": ()},
        {"n": 1, "x": torch.zeros(2, 3), "y": WEIGHTS["net"]["a"]},
        {"n": 1, "x": torch.zeros(2, 3).half(), "y": torch.zeros(0, 5)},
    ],
)
def test_another_structure_than_usual_costs_all_its_bytes(state):
    data = packed(state)
    (_, size) = sizes([USUAL[0], data], USUAL)
    assert size.total == len(data) - 4
    assert size.total > len(structure_of(data))
