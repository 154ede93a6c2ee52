"""Tasks go out to PyTorch's loaders; images come in from Hugging Face; backbones come in frozen."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

# The suite for every learner of the registry; the fixture `learner` below runs it on this one.
from test_learner_contract import (  # noqa: F401
    rgb,
    small,
    test_asked_twice_it_gives_the_same_answer,
    test_it_obeys_the_law_and_answers_for_every_task_shape,
    test_it_works_on_colour_images_of_64_x_64,
    test_its_state_holds_no_graph,
    test_observe_and_predict_leave_the_old_state_and_the_weights_alone,
    test_the_law_and_trust_give_the_same_answers,
)
from torch import nn
from torch.utils.data import DataLoader

import cfsl
from cfsl.data.huggingface import add_labelled_images
from cfsl.data.torch_dataset import TaskDataset
from cfsl.errors import DataError, ImageError, LearnerError
from cfsl.harness.cost import measure_macs
from cfsl.learners.frozen_backbone import FrozenBackbone, backbone_weights, small_backbone


@pytest.fixture
def learner():
    return FrozenBackbone()


# ---- tasks as a PyTorch data set


def loaded(tasks, workers, batch=4):
    loader = DataLoader(TaskDataset(tasks), batch_size=batch, num_workers=workers)
    return [{name: value.clone() for name, value in item.items()} for item in loader]


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # newer Pythons warn of fork, PyTorch's default
def test_a_loader_gives_the_same_tasks_whatever_its_number_of_workers(glyphs):
    tasks = cfsl.Tasks(glyphs, cfsl.TaskSpec.type_d(nss=4, cci=2), numbers=range(5, 15))
    alone, shared = loaded(tasks, 0), loaded(tasks, 2)
    assert (
        [len(batch["number"]) for batch in alone]
        == [4, 4, 2]
        == [len(batch["number"]) for batch in shared]
    )
    for one, other in zip(alone, shared, strict=True):
        assert one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)
    numbers = torch.cat([batch["number"] for batch in shared]).tolist()
    assert numbers == list(range(5, 15))


def test_an_item_is_the_task_of_that_position(glyphs):
    tasks = cfsl.Tasks(glyphs, cfsl.TaskSpec.type_b(nss=2), numbers=range(7, 10))
    dataset = TaskDataset(tasks)
    assert len(dataset) == 3

    for position in (0, 2, -1):
        item, task = dataset[position], tasks[position]
        assert int(item["number"]) == task.number
        assert item["support_images"].equal(torch.stack([s.images for s in task.support_sets]))
        assert item["support_labels"].equal(torch.stack([s.labels for s in task.support_sets]))
        assert item["target_images"].equal(task.target.images) and item["target_labels"].equal(
            task.target.labels
        )
        assert item["target_groups"].equal(task.target.groups)

    with pytest.raises(IndexError):
        dataset[3]


# ---- images from Hugging Face


@dataclass
class ClassLabel:
    """Like a `datasets.ClassLabel`."""

    names: list[str]


class Images:
    """Like a `datasets.Dataset` of images: rows that are dicts, and `features` by column."""

    def __init__(self, rows, names, label="label"):
        self.rows, self.features = rows, {"image": object(), label: ClassLabel(names)}

    def __iter__(self):
        return iter(self.rows)


NAMES = ["ant", "bee", "cat", "dog", "eel", "fox"]


def rows(count=8, side=20, label="label"):
    generator = np.random.default_rng(1)
    arrays = [
        generator.integers(0, 256, (side, side + 4, 3)).astype(np.uint8) for _ in range(6 * count)
    ]
    return [{"image": Image.fromarray(array), label: i % 6} for i, array in enumerate(arrays)]


def test_a_hugging_face_data_set_becomes_tasks(tmp_path):
    data = add_labelled_images("pets", Images(rows(), NAMES), size=16, root=tmp_path)
    assert list(data.info.class_names) == NAMES and data.class_sizes.tolist() == [8] * 6
    assert data.pixels.shape == (48, 3, 16, 16) and data.splits_name == "shuffled"
    tasks = cfsl.Tasks(data, cfsl.TaskSpec.type_b(nss=2, n_way=2), split="all", numbers=range(3))
    trace = cfsl.evaluate(cfsl.learners.registry.find_learner("pixel_nn"), tasks)
    assert trace.logits.shape == (3, 20, 4)
    assert cfsl.load("pets", root=tmp_path).fingerprint == data.fingerprint


def test_its_parts_come_together_under_their_classes(tmp_path):
    everything = rows()
    parts = {"train": Images(everything[:30], NAMES), "test": Images(everything[30:], NAMES)}
    whole = add_labelled_images("whole", Images(everything, NAMES), size=16, root=tmp_path)
    assert (
        add_labelled_images("parts", parts, size=16, root=tmp_path).info.pixels_sha256
        == whole.info.pixels_sha256
    )


def test_arrays_texts_numpy_labels_other_columns_and_own_splits_will_do(tmp_path):
    arrays = [
        {"img": np.asarray(row["image"])[..., 0], "kind": NAMES[row["label"]]} for row in rows()
    ]
    given = {"train": NAMES[:3], "val": NAMES[3:4], "test": NAMES[4:]}
    data = add_labelled_images(
        "grey", arrays, size=16, channels=1, columns=("img", "kind"), splits=given, root=tmp_path
    )
    assert data.pixels.shape == (48, 1, 16, 16) and data.splits == given

    numbered = [
        {"image": np.asarray(row["image"]), "label": np.int64(row["label"])} for row in rows()
    ]
    assert (
        add_labelled_images("numbers", numbered, size=16, root=tmp_path).info.class_names[2]
        == "class000002"
    )


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"image": np.zeros((4, 4), np.uint8)}, "'image' and 'label' are needed"),
        ({"image": np.zeros((4, 4), np.float32), "label": 0}, "float32"),
        ({"image": np.zeros((4, 4), np.uint8), "label": -1}, "label -1"),
        ({"image": np.zeros((4, 4), np.uint8), "label": 6}, "from 0 to 5"),
        ({"image": np.zeros((4, 4), np.uint8), "label": 1.5}, "whole number or a text"),
        (np.zeros((4, 4), np.uint8), "ndarray"),
    ],
)
def test_what_is_no_labelled_image_is_refused_by_its_number(tmp_path, row, said):
    with pytest.raises((DataError, ImageError), match="image 1 ") as refused:
        add_labelled_images("odd", Images([rows()[0], row], NAMES), size=16, root=tmp_path)
    assert said in str(refused.value) and not (tmp_path / "odd").exists()


def test_names_that_are_taken_and_no_images_are_refused(tmp_path):
    for name in ("omniglot", "glyphs-30x5"):
        with pytest.raises(DataError, match="choose another name"):
            add_labelled_images(name, rows(), size=16, root=tmp_path)
    for nothing in ({}, []):
        with pytest.raises(DataError):
            add_labelled_images("nothing", nothing, size=16, root=tmp_path)


def test_the_real_datasets_package_is_read_as_its_stand_in_is(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)}
    )
    columns = {"image": [row["image"] for row in rows()], "label": [row["label"] for row in rows()]}

    real = datasets.Dataset.from_dict(columns, features=features)
    stand_in = add_labelled_images("stand-in", Images(rows(), NAMES), size=16, root=tmp_path)
    assert (
        add_labelled_images("real", real, size=16, root=tmp_path).info.pixels_sha256
        == stand_in.info.pixels_sha256
    )

    parts = datasets.DatasetDict(train=real.select(range(30)), test=real.select(range(30, 48)))
    assert (
        add_labelled_images("both", parts, size=16, root=tmp_path).class_sizes.tolist() == [8] * 6
    )


# ---- frozen backbones


def test_weights_come_from_a_module_through_a_file(small, tmp_path):  # noqa: F811
    torch.manual_seed(3)
    module = small_backbone(width=8).eval()
    learner, meta = FrozenBackbone(arguments={"width": 8}), backbone_weights(module)
    save_file({**meta["params"], **meta["stats"]}, tmp_path / "backbone.safetensors")

    read = load_file(tmp_path / "backbone.safetensors")
    again = {
        "params": {name: read[name] for name in meta["params"]},
        "stats": {n: read[n] for n in meta["stats"]},
    }

    images = cfsl.Tasks(small, cfsl.TaskSpec.few_shot(), split="all")[0].target.images
    with torch.no_grad():
        assert learner.embed(again, images).equal(module(images.expand(-1, 3, -1, -1)))


def test_it_learns_class_means_and_costs_what_they_cost(small):  # noqa: F811
    tasks = cfsl.Tasks(small, cfsl.TaskSpec.type_b(nss=3), split="all", numbers=range(20))
    learner = FrozenBackbone()
    meta = learner.init((1, 28, 28), torch.Generator().manual_seed(0))

    trace = cfsl.evaluate(learner, tasks, meta)
    assert cfsl.summarise(cfsl.task_accuracies(trace)).mean > 2 / 15
    assert cfsl.atm(trace).representation == pytest.approx(15 * 128 / (15 * 784))
    convolutions = 14 * 14 * 16 * 3 * 9 + 7 * 7 * 32 * 16 * 9
    assert measure_macs(learner, tasks, meta).adaptation == 15 * (convolutions + 2 * 14 * 14 * 16)


def test_images_are_brought_to_what_the_backbone_was_trained_on(small):  # noqa: F811
    images = cfsl.Tasks(small, cfsl.TaskSpec.few_shot(), split="all")[0].target.images
    plain = FrozenBackbone()
    meta = FrozenBackbone().init((1, 28, 28), torch.Generator().manual_seed(0))

    changed = FrozenBackbone(side=14, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    shrunk = nn.functional.interpolate(
        images.expand(-1, 3, -1, -1), (14, 14), mode="bilinear", antialias=True
    )

    with torch.no_grad():
        assert changed.embed(meta, images).allclose(
            plain.embed(meta, (shrunk - 0.5) / 0.25), atol=1e-5
        )


def test_the_settings_of_a_backbone_can_be_written_down(small):  # noqa: F811
    learner = FrozenBackbone(arguments={"width": 8}, mean=(0.5,) * 3, std=(0.5,) * 3)
    assert FrozenBackbone.from_json(learner.canonical_json()) == learner


def a_tuple() -> nn.Module:
    class Pair(nn.Module):
        def forward(self, images):
            return images, images

    return Pair()


def test_backbones_that_do_not_fit_are_refused_with_what_to_do():
    images, meta = torch.zeros(2, 1, 8, 8), FrozenBackbone().init((1, 8, 8), torch.Generator())

    for fields, said in [
        ({"architecture": "no.such.module:net"}, "package.module:function"),
        ({"arguments": {"widths": 3}}, "cannot be built"),
        ({"architecture": "cfsl.learners.frozen_backbone:backbone_weights"}, "cannot be built"),
        ({"architecture": "builtins:dict"}, "torch.nn.Module is needed"),
        ({"architecture": f"{__name__}:a_tuple"}, "tuple"),
        ({"architecture": "torch.nn:Identity"}, "one row an image"),
    ]:
        with pytest.raises(LearnerError, match=said.replace(".", r"\.")):
            FrozenBackbone(**fields).embed(
                {"params": {}, "stats": {}} if "arch" in str(fields) else meta, images
            )

    with pytest.raises(LearnerError, match=r"no '0\.weight'"):
        FrozenBackbone().embed({"params": {}, "stats": {}}, images)


def test_without_transformers_it_is_said_how_to_get_it():
    if "transformers" in sys.modules or not _is_missing("transformers"):
        pytest.skip("transformers is installed")
    from cfsl.learners.frozen_backbone import from_transformers

    with pytest.raises(LearnerError, match=r"pip install cfsl\[transformers\]"):
        from_transformers("no-such-model")


def _is_missing(package):
    import importlib.util

    return importlib.util.find_spec(package) is None


@pytest.mark.parametrize("kind", ["dinov2", "vit", "resnet"])
def test_a_backbone_of_transformers_is_evaluated_under_the_law(small, tmp_path, kind):  # noqa: F811
    pytest.importorskip("transformers")
    folder, settings = tmp_path / kind, {"dinov2": VIT, "vit": VIT, "resnet": RESNET}[kind]
    made = f"""
import torch, transformers
torch.manual_seed(0)
config = transformers.AutoConfig.for_model("{kind}", **{settings!r})
transformers.AutoModel.from_config(config).save_pretrained({str(folder)!r})
"""
    subprocess.run([sys.executable, "-c", made], check=True, capture_output=True)
    from cfsl.learners.frozen_backbone import from_transformers

    learner, meta = from_transformers(folder, side=28)
    json.loads(learner.canonical_json())

    tasks = cfsl.Tasks(small, cfsl.TaskSpec.type_b(nss=2), split="all", numbers=range(10))
    quick = cfsl.evaluate(learner, tasks, meta)
    long = cfsl.evaluate(learner, tasks[:2], meta, table=False)
    assert np.allclose(quick.logits[:2], long.logits, atol=1e-3)
    assert cfsl.summarise(cfsl.task_accuracies(quick)).mean > 0.1


VIT = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 7,
    "intermediate_size": 32,
}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
