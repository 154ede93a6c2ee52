"""Rule 23 of docs/SPEC.md: tasks are written by image names; who has the images has the tasks."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_tasks import same

import cfsl
from cfsl.data.catalog import AddRequest, add_dataset
from cfsl.data.manifest import Manifest, differences
from cfsl.errors import ManifestError
from cfsl.sampling import PlanBlock
from cfsl.spec import Noise, TaskSpec


@pytest.fixture(scope="module")
def tasks(glyphs) -> cfsl.Tasks:
    return cfsl.Tasks(glyphs, TaskSpec.type_d(nss=4, cci=2), numbers=range(5, 45))


@pytest.fixture
def path(tasks, tmp_path) -> Path:
    Manifest.of(tasks).write(tmp_path / "d4.json.gz")
    return tmp_path / "d4.json.gz"


def rewrite(path: Path, change) -> None:
    content = json.loads(gzip.decompress(path.read_bytes()))
    change(content)
    path.write_bytes(gzip.compress(json.dumps(content).encode()))


def test_rule_23_a_manifest_reads_back_with_the_same_fingerprint(tasks, path):
    manifest = Manifest.read(path)
    assert manifest.fingerprint == Manifest.of(tasks).fingerprint
    assert manifest.numbers == range(5, 45) and manifest.spec == tasks.spec
    assert manifest.recomputed(tasks.data).fingerprint == manifest.fingerprint


def test_rule_23_the_same_tasks_give_the_same_bytes(tasks, path, tmp_path):
    Manifest.of(tasks).write(tmp_path / "again.json.gz")
    assert (tmp_path / "again.json.gz").read_bytes() == path.read_bytes()
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_rule_23_tasks_from_a_manifest_are_the_drawn_ones(tasks, path):
    read = Manifest.read(path).tasks(tasks.data)
    assert len(read) == 40
    assert (
        same(read[12], tasks[12])
        and same(list(read)[39], tasks[39])
        and same(read[3:9][2], tasks[5])
    )


def test_rule_23_someone_with_only_the_images_has_the_same_tasks(tasks, path, tmp_path):
    """The other data set has more classes, another order and another name."""
    data = tasks.data
    for c, name in enumerate(data.info.class_names[300:]):
        folder = tmp_path / "mine" / f"{name}"
        folder.mkdir(parents=True)
        for row in range((300 + c) * 20, (301 + c) * 20):
            Image.fromarray(data.pixels[row, 0]).save(folder / f"{data.image_names[row]}.png")
    extra = tmp_path / "mine" / "aardvark"
    extra.mkdir()
    Image.fromarray(data.pixels[0, 0]).save(extra / "000.png")
    mine = add_dataset(
        AddRequest(name="mine", source=tmp_path / "mine", size=28, channels=1, root=tmp_path)
    )
    rewrite(
        path, lambda content: content.update(images=[[c, f"{i}.png"] for c, i in content["images"]])
    )
    rewrite(path, lambda content: content.update(fingerprint=_fingerprint_of(path)))
    read = Manifest.read(path).tasks(mine)
    assert same(read[0], tasks[0])


def _fingerprint_of(path: Path) -> str:
    with pytest.raises(ManifestError, match="was changed") as refused:
        Manifest.read(path)
    assert refused.value
    content = json.loads(gzip.decompress(path.read_bytes()))
    plan = PlanBlock(
        **{name: np.array(array, np.int32) for name, array in content["tasks"].items()}
    )
    fields = {
        name: content[name]
        for name in ("data", "data_fingerprint", "splits", "splits_hash", "split", "seed")
    }
    return Manifest(
        **fields,
        spec=TaskSpec(**content["spec"]),
        sampler=content["sampler"],
        numbers=range(*content["numbers"]),
        images=tuple((c, i) for c, i in content["images"]),
        plan=plan,
    ).fingerprint


def test_corrupted_tasks_come_back_corrupted_alike(glyphs, tmp_path):
    spec = TaskSpec.instance(nss=4, k_shot=5, corruption=Noise(fraction=0.2))
    tasks = cfsl.Tasks(glyphs, spec, seed=7, numbers=range(3))
    Manifest.of(tasks).write(tmp_path / "noisy.json.gz")
    read = Manifest.read(tmp_path / "noisy.json.gz").tasks(glyphs)
    assert same(read[2], tasks[2])


def swap_two_labels(content):
    labels = content["tasks"]["target_labels"][0]
    labels[0], labels[1] = labels[1] + 1, labels[0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (swap_two_labels, "was changed"),
        (lambda content: content["images"].reverse(), "was changed"),
        (lambda content: content.update(spec=content["spec"] | {"k_target": 4}), "was changed"),
        (lambda content: content.pop("images"), "not a complete task manifest"),
        (lambda content: content.update(format=99), "format"),
        (lambda content: content.update(sampler="cfsl-99"), "cfsl-99"),
        (lambda content: content["tasks"]["target_images"][0].__setitem__(0, 10**6), "do not fit"),
        (lambda content: content["tasks"]["target_labels"].pop(), "do not fit"),
    ],
)
def test_a_manifest_that_was_tampered_with_is_refused(path, change, says):
    rewrite(path, change)
    with pytest.raises(ManifestError, match=says) as refused:
        Manifest.read(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"not gzip", gzip.compress(b"not json", mtime=0), gzip.compress(b"[1]", mtime=0)],
)
def test_a_file_that_is_no_manifest_is_refused(tmp_path, content):
    (tmp_path / "x.json.gz").write_bytes(content)
    with pytest.raises(ManifestError, match=r"x\.json\.gz"):
        Manifest.read(tmp_path / "x.json.gz")


def test_a_truncated_manifest_is_refused(path):
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ManifestError):
        Manifest.read(path)


def test_a_data_set_without_the_images_is_refused_with_the_first_one_missing(path, data_root):
    other = cfsl.load("glyphs-150x20")
    with pytest.raises(ManifestError, match=r"lacks \d+ of the \d+ images .*first: alphabet"):
        Manifest.read(path).tasks(other)


def test_differences_name_the_first_task_that_differs(tasks):
    stated = Manifest.of(tasks)
    drawn = Manifest.of(cfsl.Tasks(tasks.data, tasks.spec, seed=1, numbers=tasks.numbers))
    assert list(differences(stated, drawn)) == ["task 5 differs"]


def test_a_manifest_is_written_whole_or_not_at_all(tasks, tmp_path):
    with pytest.raises(ManifestError, match="cannot be written"):
        Manifest.of(tasks).write(tmp_path / "no" / "such" / "folder.json.gz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", list(PlanBlock.__dataclass_fields__))
def test_rule_23_the_fingerprint_covers_every_list(tasks, name):
    manifest = Manifest.of(tasks)
    array = getattr(manifest.plan, name).copy()
    array.flat[0] = (array.flat[0] + 1) % 3
    changed = dataclasses.replace(
        manifest, plan=dataclasses.replace(manifest.plan, **{name: array})
    )
    assert changed.fingerprint != manifest.fingerprint


def test_rule_23_the_fingerprint_covers_corruption_and_what_it_is_drawn_from(glyphs):
    clean = TaskSpec.instance(nss=2, k_shot=3)
    noisy = clean.replace(corruption=Noise(fraction=0.3))
    manifests = [Manifest.of(cfsl.Tasks(glyphs, spec, numbers=range(2))) for spec in (clean, noisy)]
    changes = ({"seed": 9}, {"split": "val"}, {"numbers": range(5, 7)})
    edited = [dataclasses.replace(manifests[1], **change) for change in changes]
    assert len({manifest.fingerprint for manifest in manifests + edited}) == 5


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.update(seed=1.9),
        lambda content: content.update(seed="12"),
        lambda content: content.update(data=None),
        lambda content: content.update(numbers=[-3, 37, 1]),
        lambda content: content.update(numbers="abc"),
        lambda content: content["tasks"]["support_labels"][0][0].__setitem__(0, -5),
        lambda content: content.update(spec=json.loads(TaskSpec.type_b(nss=3).canonical_json())),
    ],
)
def test_a_manifest_with_nonsense_in_it_is_refused(path, change):
    rewrite(path, change)
    with pytest.raises(ManifestError, match=r"wrong kind|do not fit"):
        Manifest.read(path)


def test_a_manifest_of_the_published_sampler_keeps_its_name(glyphs, tmp_path):
    tasks = cfsl.Tasks(
        glyphs,
        TaskSpec.type_d(nss=4, cci=2),
        numbers=range(2),
        seed=100,
        sampler="as_released_2020_08",
    )
    Manifest.of(tasks).write(str(tmp_path / "released.json.gz"))
    read = Manifest.read(str(tmp_path / "released.json.gz")).tasks(glyphs)
    assert read.sampler == "as_released_2020_08" and same(read[1], tasks[1])
