"""Tables of embedded images: made once for all columns of a learner, and anew for anything else."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import cfsl
from cfsl.harness import embedding_table
from cfsl.harness.evaluate import evaluate
from cfsl.learners.protonet import ProtoNet
from cfsl.nets.convnet import conv4
from cfsl.spec import TaskSpec

SMALL = ProtoNet(net=conv4(4, "conv-act-norm"))
SPEC = TaskSpec.type_b(nss=2, n_way=2)


@pytest.fixture
def embedded(monkeypatch):
    """Return the numbers of images that are embedded, call by call; no table is kept at first."""
    counts = []
    embed = ProtoNet.embed

    def counting(self, meta, images):
        counts.append(len(images))
        return embed(self, meta, images)

    monkeypatch.setattr(ProtoNet, "embed", counting)
    monkeypatch.setattr(embedding_table, "_KEPT", {})
    return counts


@pytest.fixture(scope="module")
def glyphs(data_root):
    return cfsl.load("glyphs-60x12")


def first_weights(learner=SMALL, seed=0):
    return learner.init((1, 28, 28), torch.Generator().manual_seed(seed))


def tasks_of(data, spec=SPEC, split="test"):
    return cfsl.Tasks(data, spec, split=split, numbers=range(3))


def test_columns_of_one_learner_share_a_table(glyphs, embedded):
    meta = first_weights()
    evaluate(SMALL, tasks_of(glyphs), meta)
    assert sum(embedded) >= len(tasks_of(glyphs).images.rows)
    embedded.clear()

    other = tasks_of(glyphs, TaskSpec.type_d(nss=4, cci=2, n_way=2))
    again = evaluate(SMALL, other, first_weights())  # equal weights, read anew
    assert embedded == []
    np.testing.assert_allclose(
        again.logits, evaluate(SMALL, other, meta, table=False).logits, atol=1e-5
    )


@pytest.mark.parametrize("change", ["weights", "one bit", "settings", "split", "data", "layout"])
def test_another_table_is_made_of_anything_else(glyphs, data_root, embedded, change):
    meta, learner, tasks = first_weights(), SMALL, tasks_of(glyphs)
    evaluate(learner, tasks, meta)
    kept = next(iter(embedding_table._KEPT.values())).clone()
    embedded.clear()
    name = next(
        name for name, tensor in meta["params"].items() if tensor.ndim == 4 and tensor.shape[1] > 1
    )

    if change == "weights":
        meta = first_weights(seed=1)
    elif change == "one bit":
        first = meta["params"][name].view(-1)[:1]
        first.copy_(torch.nextafter(first, torch.tensor(9.0)))
    elif change == "settings":
        learner = SMALL.replace(metric="cosine")
        meta = first_weights(learner)
    elif change == "split":
        tasks = tasks_of(glyphs, split="val")
    elif change == "data":
        tasks = tasks_of(cfsl.load("glyphs-61x12"))
    else:
        meta["params"][name] = meta["params"][name].contiguous(memory_format=torch.channels_last)

    evaluate(learner, tasks, meta)
    assert sum(embedded) >= len(tasks.images.rows)
    assert len(embedding_table._KEPT) == 1
    if change in ("weights", "split", "data"):
        now = next(iter(embedding_table._KEPT.values()))
        assert now.shape != kept.shape or not torch.equal(now, kept)


def test_a_learner_from_elsewhere_is_asked_every_time(glyphs, embedded):
    class Own(ProtoNet):
        """Is not of this package: it could embed by more than its settings and weights."""

    learner = Own(net=SMALL.net)
    meta = first_weights(learner)
    evaluate(learner, tasks_of(glyphs), meta)
    embedded.clear()
    evaluate(learner, tasks_of(glyphs), meta)
    assert sum(embedded) >= len(tasks_of(glyphs).images.rows)


@pytest.mark.parametrize("law", [True, False])
def test_answers_are_the_same_bits_from_a_kept_table(glyphs, embedded, law):
    meta, tasks = first_weights(), tasks_of(glyphs)
    first = evaluate(SMALL, tasks, meta, law=law)
    embedded.clear()
    second = evaluate(SMALL, tasks, meta, law=law)
    assert embedded == []
    np.testing.assert_array_equal(first.logits, second.logits)


def test_a_table_that_is_too_large_is_not_kept(glyphs, embedded, monkeypatch):
    monkeypatch.setattr(embedding_table, "_LARGEST_KEPT", 1000)
    for _ in range(2):
        embedded.clear()
        evaluate(SMALL, tasks_of(glyphs), first_weights())
        assert sum(embedded) >= len(tasks_of(glyphs).images.rows)
    assert embedding_table._KEPT == {}


def test_a_table_belongs_to_its_data_set(glyphs):
    """Also where another one has the same rows in the same split."""
    tasks = tasks_of(glyphs)
    others = SimpleNamespace(images=tasks.images, data=SimpleNamespace(fingerprint="0" * 64))
    same = SimpleNamespace(
        images=tasks.images, data=SimpleNamespace(fingerprint=glyphs.fingerprint)
    )
    key = embedding_table._hash_of_sources(SMALL, first_weights(), tasks, "cpu")
    assert embedding_table._hash_of_sources(SMALL, first_weights(), same, "cpu") == key
    assert embedding_table._hash_of_sources(SMALL, first_weights(), others, "cpu") != key


def test_isolated_processes_embed_for_themselves(glyphs, embedded):
    evaluate(SMALL, tasks_of(glyphs), first_weights(), isolate=True)
    assert embedding_table._KEPT == {}
