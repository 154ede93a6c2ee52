"""ProtoNets by the statistics of a batch, and ProtoNets with replay."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import cfsl
from cfsl.errors import DataFlowError, SpecError
from cfsl.harness.evaluate import evaluate
from cfsl.harness.run import StrictRun
from cfsl.learners.base import Support, TaskInfo
from cfsl.learners.multiproto import MultiProto
from cfsl.learners.protonet import ProtoNet
from cfsl.learners.protonet_replay import ProtoNetReplay
from cfsl.nets import SmallResNet, conv4
from cfsl.spec import TaskSpec

SHAPE = (1, 28, 28)
NET = conv4(4, "conv-act-norm")
KINDS = [ProtoNet, MultiProto, ProtoNetReplay]
every_kind = pytest.mark.parametrize("kind", KINDS)
SPECS = {
    "A": TaskSpec.type_a(nss=3, n_way=3, k_target=2),
    "B": TaskSpec.type_b(nss=3, n_way=3, k_target=2),
    "C": TaskSpec.type_c(nss=3, n_way=3, k_target=2),
    "D": TaskSpec.type_d(nss=5, cci=2, n_way=2, k_shot=2, k_target=2),
    "instance": TaskSpec.instance(nss=2, k_shot=3),
}


@pytest.fixture(scope="module")
def small(data_root):
    return cfsl.load("glyphs-60x12")


def tasks_of(data, spec: TaskSpec, count: int = 3):
    return cfsl.Tasks(data, spec, numbers=range(count), split="all")


def meta_of(learner, seed: int = 0):
    return learner.init(SHAPE, torch.Generator().manual_seed(seed))


def info_of(spec: TaskSpec) -> TaskInfo:
    return TaskInfo(
        SHAPE, spec.labels, spec.nss, spec.n_way, spec.k_shot, spec.interval, spec.overwrite, seed=0
    )


def batch_features(meta, net, images):
    return net.features(meta["params"], meta["stats"], images, norm="batch")


# Statistics of the batch


@every_kind
def test_only_batch_statistics_make_it_transductive(kind):
    assert kind(norm="batch").transductive and not kind().transductive
    with pytest.raises(SpecError, match="'running' or 'batch'"):
        kind(norm="support")


@every_kind
def test_batch_statistics_give_other_answers_under_the_law_and_without_a_table(kind, small):
    tasks = tasks_of(small, SPECS["B"])
    meta = meta_of(kind(net=NET))
    running, batch = (
        evaluate(kind(net=NET, norm=norm), tasks, meta) for norm in ("running", "batch")
    )
    assert np.isfinite(batch.logits).all()
    assert np.abs(running.logits - batch.logits).max() > 0.1
    long = evaluate(kind(net=NET, norm="batch"), tasks, meta, table=False)
    assert np.array_equal(batch.logits, long.logits)


def test_each_support_set_and_all_targets_have_statistics_of_their_own(small):
    learner, tasks = ProtoNet(net=NET, norm="batch"), tasks_of(small, SPECS["A"], 1)
    meta, task = meta_of(learner), tasks[0]
    with torch.no_grad():
        sets = torch.stack(
            [batch_features(meta, NET, support.images) for support in task.support_sets]
        )
        targets = batch_features(meta, NET, task.target.images)
        expected = -(torch.cdist(targets, sets.mean(dim=0)) ** 2)
    assert np.allclose(evaluate(learner, tasks, meta).logits[0], expected, atol=1e-3)


@every_kind
def test_the_law_finds_out_who_claims_to_look_at_targets_one_by_one(kind, small, monkeypatch):
    monkeypatch.setattr(kind, "transductive", False)
    learner, tasks = kind(net=NET, norm="batch"), tasks_of(small, SPECS["B"], 1)
    with pytest.raises(DataFlowError, match="looks at them jointly"):
        evaluate(learner, tasks, meta_of(learner), table=False)


@every_kind
def test_a_support_set_of_one_image_is_no_division_by_zero(kind):
    """The last batch norm of this net is behind a projection: one value a channel."""
    learner = kind(net=SmallResNet(widths=(4, 4), embedding=8), norm="batch")
    spec = TaskSpec.type_b(nss=2, n_way=1)

    source = torch.Generator().manual_seed(1)
    supports = [
        Support(torch.randn(1, *SHAPE, generator=source), torch.tensor([label]))
        for label in range(2)
    ]
    target = torch.randn(1, *SHAPE, generator=source)

    run = StrictRun(learner, meta_of(learner))
    with torch.no_grad():
        outcome = run.task(info_of(spec), iter(supports), target.clone)
    assert not outcome.logits.isnan().any() and outcome.logits[0, 0] != outcome.logits[0, 1]


def test_the_statistics_of_a_single_value_are_the_running_ones():
    net = SmallResNet(widths=(4, 4), embedding=8)
    running, batch = ProtoNet(net=net), ProtoNet(net=net, norm="batch")
    meta = meta_of(running)
    last = [name for name in net.layers(SHAPE) if f"{name}.mean" in meta["stats"]][-1]
    moved = {**meta, "stats": {**meta["stats"], f"{last}.mean": meta["stats"][f"{last}.mean"] + 5}}
    one, two = (torch.randn(n, *SHAPE, generator=torch.Generator().manual_seed(n)) for n in (1, 2))
    assert not torch.allclose(batch.embed(meta, one), batch.embed(moved, one))
    assert torch.allclose(batch.embed(meta, two), batch.embed(moved, two))


# Replay


def by_hand(learner: ProtoNetReplay, meta, spec: TaskSpec, rows, counts, labels, images):
    """Kernel ridge regression in double precision, the plain way."""
    scale = float(meta["params"]["scale"])
    rows, images = (torch.as_tensor(part, dtype=torch.float64) for part in (rows, images))
    if learner.metric == "cosine":
        rows, images = (part / part.norm(dim=1, keepdim=True) for part in (rows, images))
    kernel = lambda a, b: torch.exp(-learner.width * scale * torch.cdist(a, b) ** 2)  # noqa: E731
    ridge = torch.diag(learner.ridge / torch.as_tensor(counts, dtype=torch.float64))
    answers = torch.eye(spec.labels, dtype=torch.float64)[labels]
    relative = kernel(images, rows) / kernel(images, rows).max(dim=1, keepdim=True).values
    return learner.gain * relative @ torch.linalg.inv(kernel(rows, rows) + ridge) @ answers


def random_task(
    spec: TaskSpec, features: int = 4, seed: int = 0
) -> tuple[list[Support], torch.Tensor]:
    """Random embeddings with the labels of the spec."""
    source, sets = torch.Generator().manual_seed(seed), []
    for number in range(spec.nss):
        first = 0 if spec.overwrite else spec.n_way * (number // spec.interval)
        labels = torch.arange(first, first + spec.n_way).repeat_interleave(spec.k_shot)
        sets.append(Support(torch.randn(len(labels), features, generator=source), labels))
    return sets, torch.randn(9, features, generator=source)


def after(learner, spec: TaskSpec, sets: list[Support]):
    state = learner.begin(meta_of(learner), info_of(spec))
    for support in sets:
        state = learner.observe(state, support)
    return state


@pytest.mark.parametrize("metric", ["euclidean", "cosine", "dot"])
@pytest.mark.parametrize("shape", ["A", "B", "C", "D"])
def test_answers_are_those_of_kernel_ridge_regression_on_all_images(shape, metric):
    spec = SPECS[shape]
    sets, targets = random_task(spec)
    learner = ProtoNetReplay(net=NET, metric=metric, width=0.2, ridge=0.5, gain=3.0)
    images, labels = torch.cat([s.images for s in sets]), torch.cat([s.labels for s in sets])
    expected = by_hand(
        learner, meta_of(learner), spec, images, torch.ones(len(labels)), labels, targets
    )
    torch.testing.assert_close(
        learner.predict(after(learner, spec, sets), targets), expected.float(), atol=1e-4, rtol=1e-4
    )


def test_what_is_too_old_is_a_mean_that_counts_for_as_many_images():
    spec = TaskSpec.type_a(nss=4, n_way=2)
    sets, targets = random_task(spec)
    learner = ProtoNetReplay(net=NET, sets=1, ridge=0.5)
    rows = torch.cat([torch.stack([s.images for s in sets[:3]]).mean(dim=0), sets[3].images])

    expected = by_hand(learner, meta_of(learner), spec, rows, [3, 3, 1, 1], [0, 1, 0, 1], targets)
    torch.testing.assert_close(
        learner.predict(after(learner, spec, sets), targets), expected.float(), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("sets", [0, 1, 2, None])
@pytest.mark.parametrize("metric", ["euclidean", "cosine", "dot"])
@pytest.mark.parametrize("shape", ["A", "B", "C", "D"])
def test_without_a_share_it_is_protonets_exactly(shape, metric, sets):
    spec = SPECS[shape]
    supports, targets = random_task(spec)
    protonet = ProtoNet(net=NET, metric=metric)
    replay = ProtoNetReplay(net=NET, metric=metric, sets=sets, share=0.0)
    for shown in range(1, spec.nss + 1):
        a, b = (
            one.predict(after(one, spec, supports[:shown]), targets) for one in (protonet, replay)
        )
        assert torch.equal(a, b)


def test_without_a_share_it_is_protonets_on_images_too(small):
    tasks = tasks_of(small, SPECS["instance"], 2)
    a, b = (
        evaluate(one, tasks, meta_of(one))
        for one in (ProtoNet(net=NET), ProtoNetReplay(net=NET, share=0.0))
    )
    assert np.array_equal(a.logits, b.logits)


def test_the_share_goes_from_protonets_to_replay():
    spec = SPECS["D"]
    sets, targets = random_task(spec)
    none, some, all_ = (
        learner.predict(after(learner, spec, sets), targets)
        for learner in (ProtoNetReplay(net=NET, share=share) for share in (0.0, 0.25, 1.0))
    )
    torch.testing.assert_close(some, 0.75 * none + 0.25 * all_)
    assert (none - all_).abs().max() > 0.1


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_labels_that_were_never_shown_are_impossible_and_others_are_not(share):
    spec = SPECS["B"]
    sets, targets = random_task(spec)
    learner = ProtoNetReplay(net=NET, share=share)
    logits = learner.predict(after(learner, spec, sets[:2]), targets)
    assert torch.isfinite(logits[:, :6]).all() and (logits[:, 6:] == float("-inf")).all()


@pytest.mark.parametrize(
    ("sets", "rows"), [(0, [2, 2, 4, 4, 6]), (1, [4, 6, 6, 8, 8]), (None, [4, 8, 12, 16, 20])]
)
def test_memory_is_what_is_stored(small, sets, rows):
    """Type D, NSS=5, CCI=2, 2-way 2-shot: four images a set. Merged rows are one a label."""
    spec = SPECS["D"]
    trace = evaluate(
        ProtoNetReplay(net=NET, sets=sets),
        tasks_of(small, spec, 1),
        meta_of(ProtoNetReplay(net=NET)),
    )
    own = (trace.state_bytes - trace.bookkeeping_bytes)[0]
    assert own.tolist() == [0, *(4 * 4 * count for count in rows)]
    assert trace.bookkeeping_bytes[0].tolist() == [0, *(2 * 8 * count for count in rows)]


def test_a_label_of_two_classes_is_learned_from_images_and_not_from_their_mean():
    """Type C: label 0 stands for two classes on both sides of label 1."""
    spec = TaskSpec.type_c(nss=2, n_way=2)
    left, middle, right = (torch.tensor([[x, 0.0, 0.0, 0.0]]) for x in (-4.0, 0.0, 4.0))
    far = torch.tensor([[0.0, 4.0, 0.0, 0.0]])
    sets = [
        Support(torch.cat([left, middle]), torch.arange(2)),
        Support(torch.cat([right, far]), torch.arange(2)),
    ]

    targets = torch.cat([left, middle, right, far])

    replay, means = (ProtoNetReplay(net=NET, share=share) for share in (1.0, 0.0))
    assert replay.predict(after(replay, spec, sets), targets).argmax(dim=1).tolist() == [0, 1, 0, 1]
    assert means.predict(after(means, spec, sets), targets).argmax(dim=1).tolist() != [0, 1, 0, 1]


def test_a_target_far_from_everything_has_an_answer_still():
    spec = SPECS["B"]
    sets, _ = random_task(spec)
    learner = ProtoNetReplay(net=NET)
    target = 100 * sets[1].images[1:2]
    assert learner.predict(after(learner, spec, sets), target).argmax().item() == 4


def test_weights_and_training_are_those_of_protonets(small):
    from cfsl.learners.base import Moment

    protonet, replay = ProtoNet(net=NET, metric="cosine"), ProtoNetReplay(net=NET, metric="cosine")
    meta = meta_of(protonet)
    same = meta_of(replay)
    assert all(torch.equal(meta["params"][name], same["params"][name]) for name in meta["params"])
    batch = next(tasks_of(small, SPECS["B"]).batches(3))
    losses = [
        learner.episode_loss(
            dict(meta["params"]), dict(meta["stats"]), batch, turns=False, moment=Moment(0, 1)
        )[0]
        for learner in (protonet, replay)
    ]
    assert torch.equal(*losses)


@pytest.mark.parametrize(
    "wrong", [{"share": 1.5}, {"width": 0.0}, {"ridge": 0.0}, {"gain": float("inf")}, {"sets": -1}]
)
def test_nonsense_is_refused(wrong):
    with pytest.raises(SpecError, match="is refused"):
        ProtoNetReplay(**wrong)


# Prototypes per class group


def test_a_label_that_was_shown_never_becomes_impossible_however_far_it_is():
    """By hand: label 0 has prototypes 0 and 1, label 1 has 100; label 2 was never shown."""
    learner = MultiProto()
    state = {
        "info": info_of(SPECS["B"]),
        "scale": torch.tensor(1.0),
        "sums": torch.tensor([[0.0], [1.0], [100.0]]),
        "counts": torch.ones(3, dtype=torch.int64),
        "labels": torch.tensor([0, 0, 1]),
        "first": 2,
        "seen": 2,
    }

    logits = learner.predict(state, torch.tensor([[0.0]]))[0]
    assert torch.allclose(
        logits[:2], torch.tensor([np.log(1 + np.exp(-1)), -1e4], dtype=torch.float32)
    )
    assert torch.isneginf(logits[2:]).all()


def test_labels_that_come_late_in_a_group_get_prototypes_of_their_own(small):
    """In the instance test, all support sets are one group, and each has labels of its own."""
    learners = ProtoNet(net=NET), MultiProto(net=NET)
    tasks = tasks_of(small, SPECS["instance"])
    protonet, multiproto = (evaluate(learner, tasks, meta_of(learner)) for learner in learners)
    assert np.allclose(protonet.logits, multiproto.logits, atol=1e-5)
    assert (multiproto.logits.argmax(axis=2) == multiproto.labels).all()


# The published defect


def test_the_defect_keeps_the_last_image_of_a_label_alone():
    learner = ProtoNet(net=NET, metric="euclidean", prototype="last")
    meta = meta_of(learner)
    state = learner.begin(meta, info_of(SPECS["C"]))
    first, second, third = torch.randn(3, learner.net.feature_count(SHAPE))
    state = learner.observe(state, Support(torch.stack([first, second]), torch.tensor([0, 0])))
    state = learner.observe(state, Support(third[None], torch.tensor([1])))
    assert state["sums"][0].equal(second) and state["sums"][1].equal(third)
    assert state["counts"].tolist() == [1, 1, 0]


def test_the_defect_changes_nothing_with_one_image_a_label_and_costs_type_c_its_earlier_classes(
    small,
):
    honest, defective = ProtoNet(net=NET), ProtoNet(net=NET, prototype="last")
    meta = meta_of(honest)
    for name, is_same in (("B", True), ("C", False), ("A", False)):
        tasks = tasks_of(small, SPECS[name])
        answers = [evaluate(learner, tasks, meta).logits for learner in (honest, defective)]
        assert np.array_equal(*answers) is is_same, name


def test_runs_without_the_defect_keep_their_hash():
    assert "prototype" not in ProtoNet().model_dump(mode="json")
    assert ProtoNet(**ProtoNet(prototype="last").model_dump(mode="json")).prototype == "last"
