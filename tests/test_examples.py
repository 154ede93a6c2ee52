"""What the README and the docs show is what runs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def test_the_first_example_prints_shapes_and_draws_a_picture(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "first_task.py"))
    assert (
        capsys.readouterr().out
        == "[(5, 1, 28, 28), (5, 1, 28, 28), (5, 1, 28, 28), (5, 1, 28, 28)] (50, 1, 28, 28)\n"
    )
    with Image.open(tmp_path / "task17.png") as picture:
        assert picture.width > 500


def test_the_readme_shows_the_first_example_to_the_letter():
    assert f"```python\n{without_docstring('first_task.py')}```" in (ROOT / "README.md").read_text()


def without_docstring(name: str) -> str:
    return (EXAMPLES / name).read_text().split('"""\n\n', 1)[1]


def test_the_network_of_ones_own_runs_and_is_the_one_in_the_readme(tmp_path, monkeypatch, capsys):
    shown = without_docstring("own_network.py")
    assert f"```python\n{shown}```" in (ROOT / "README.md").read_text()
    learner = shown[shown.index("class ") : shown.index("\n\n\nnet = ")]
    assert len([line for line in learner.split("\n") if line]) <= 15

    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "own_network.py"))
    mean, interval, atm = re.findall(r"\d+\.\d+", capsys.readouterr().out)
    assert float(mean) - float(interval) > 1 / 15
    assert float(atm) == pytest.approx(16 * 12 * 12 / 784, abs=0.01)


def test_the_demo_trains_evaluates_and_leaves_cards_and_pictures(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # one worker: each takes seconds to start
    demo = runpy.run_path(str(EXAMPLES / "demo.py"))
    learners = ("chance", "protonet", "joint", "pretrain_tune")
    demo["main"](
        demo["Size"](data="glyphs-400x20", learners=learners, tuned_tasks=2, tasks=4, updates=1)
    )
    there = sorted(path.name for path in (tmp_path / "demo").iterdir())
    assert there == [
        "accuracy.png", "cards",
        "instance-clean.png", "instance-noise.png", "instance-occluded.png",
        "report.html", "runs",
        "type-a.png", "type-b.png", "type-c.png", "type-d.png",
    ]  # fmt: skip
    cards = {
        path.stem: json.loads(path.read_text())
        for path in (tmp_path / "demo" / "cards").glob("*.json")
    }
    assert (
        len(cards)
        == 5 * len(learners)
        == len(list((tmp_path / "demo" / "cards").glob("*.answers.npz")))
    )
    assert cards["chance-B"]["metrics"]["accuracy"]["mean"] == pytest.approx(1 / 15)
    assert (
        cards["protonet-B"]["checkpoint"]["step_macs"] > 0 < cards["pretrain_tune-D"]["peak_memory"]
    )
    said = capsys.readouterr().out
    assert all(name in said for name in learners) and "joint *" in said and "peak memory" in said
    assert str(tmp_path / "demo" / "report.html") in said.replace("\n", "")
    page = (tmp_path / "demo" / "report.html").read_text()
    assert all(f'data-learner="{name}"' in page for name in learners) and "Right and wrong" in page


def test_the_learner_of_ones_own_runs_and_is_the_one_in_the_docs():
    source = (EXAMPLES / "own_learner.py").read_text()
    shown = source[source.index("@dataclass") : source.index("\n\nif __name__")]
    assert f"```python\n{shown}```" in (ROOT / "docs" / "adding-a-learner.md").read_text()
    import cfsl

    learner = runpy.run_path(str(EXAMPLES / "own_learner.py"))["BlurredMeans"]()
    tasks = cfsl.Tasks(cfsl.load("glyphs-400x20"), cfsl.TaskSpec.type_b(nss=3), numbers=range(40))
    trace = cfsl.evaluate(learner, tasks)
    assert cfsl.summarise(cfsl.task_accuracies(trace)).mean > 0.2
    assert cfsl.atm(trace).total == pytest.approx((15 * 100 + 15) / (15 * 784))


def test_own_photos_go_from_a_folder_to_a_result_and_a_picture(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    example = runpy.run_path(str(EXAMPLES / "own_photos.py"))
    example["main"]()
    accuracy = {
        name: float(share)
        for name, share in re.findall(r"(\w+) +([\d.]+) \+-", capsys.readouterr().out)
    }
    assert accuracy.keys() == {"pixel_nn", "protonet"} and min(accuracy.values()) > 50
    with Image.open(tmp_path / "my-photos.png") as picture:
        assert picture.width > 500
    example["main"](tmp_path / "photos")  # a folder of one's own, and the same name again
    assert len(list((tmp_path / "photos").glob("*/*.png"))) == 120


def test_cards_are_read_by_whatever_is_installed_and_all_readers_agree(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    example = runpy.run_path(str(EXAMPLES / "reading_cards.py"))
    example["main"](ROOT / "results" / "omniglot")
    said = capsys.readouterr().out
    assert re.search(r"(?m)^protonet +B3 +9\d\.\d\d %", said)
    expected = example["with_csv"](tmp_path / "cards.csv")
    installed = [name for name in ("duckdb", "pandas") if importlib.util.find_spec(name)]
    assert ("csv module" in said) == (not installed)
    for name in installed:
        assert [tuple(row) for row in example[f"with_{name}"](tmp_path / "cards.csv")] == expected


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # newer Pythons warn of fork, PyTorch's default
def test_a_training_loop_of_ones_own_reads_tasks_from_two_workers(capsys):
    example = runpy.run_path(str(EXAMPLES / "torch_dataloader.py"))
    example["main"](updates=3, workers=0)
    alone = capsys.readouterr().out
    example["main"](updates=3, workers=2)
    assert capsys.readouterr().out == alone and alone.startswith("loss ")


def test_images_come_in_from_hugging_face(capsys):
    runpy.run_path(str(EXAMPLES / "huggingface_images.py"))["main"]()
    assert re.search(r"120 images of 12 classes.*pixel_nn 100\.0 %", capsys.readouterr().out)


def test_a_frozen_backbone_comes_in_from_a_file_and_leaves_a_card(run, tmp_path, capsys):
    runpy.run_path(str(EXAMPLES / "frozen_backbone.py"))["main"](tasks=10)
    assert float(re.match(r"accuracy ([\d.]+) %", capsys.readouterr().out)[1]) > 100 / 15
    assert (tmp_path / "backbone.safetensors").exists()
    verified = run("verify", "frozen.json")
    assert verified.code == 0 and "in part" in verified.out


PAGES = [
    "README.md",
    *(
        f"docs/{name}.md"
        for name in ("SPEC", "data", "data-flow", "adding-a-learner", "results", "quick-start")
    ),
]


@pytest.mark.parametrize("page", [*PAGES, "docs/design/architecture.md"])
def test_links_between_pages_lead_somewhere(page):
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert ((ROOT / page).parent / target).exists(), target


def commands() -> list[str]:
    import typer.main

    from cfsl.cli import app

    tree = typer.main.get_command(app)
    return [
        f"{group} {name}"
        for group, sub in tree.commands.items()
        for name in getattr(sub, "commands", {"": None})
    ]


def test_every_command_data_set_and_rule_is_documented():
    from cfsl.data.catalog import CATALOG
    from cfsl.learners.registry import LEARNERS

    pages = "".join(
        (ROOT / page).read_text()
        for page in (
            "README.md",
            "CHANGELOG.md",
            "docs/SPEC.md",
            "docs/data.md",
            "docs/quick-start.md",
        )
    )
    assert [name for name in LEARNERS if f"`{name}`" not in pages] == []
    for command in commands():
        group, name = command.split(" ", 1)
        assert re.search(rf"cfsl {group}[^\n]*\b{name}\b", pages), command
    for name, entry in CATALOG.items():
        assert f"`{name}`" in pages
        assert all(f"`{recipe}`" in pages for recipe in entry.recipes if len(entry.recipes) > 1)


def test_every_numbered_rule_has_a_test_of_its_number():
    rules = {
        int(n)
        for n in re.findall(r"^\*\*(\d+)\. ", (ROOT / "docs" / "SPEC.md").read_text(), re.MULTILINE)
    }
    named = "".join(path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    tested: set[int] = set()
    for numbers in re.findall(r"def test_rules?_((?:\d+_)+)", named):
        tested |= {int(n) for n in numbers.strip("_").split("_")}
    assert rules == set(range(1, 25)) and rules <= tested, sorted(rules - tested)
