"""The suites are the papers' tables: rows, columns, hyper-parameters and schedules."""

from __future__ import annotations

import json

import pytest

from cfsl.cards.published import published
from cfsl.presets.cells import Request, cells_of, runs_of
from cfsl.presets.columns import FIGURE_4, INSTANCE, SCALING, TABLE_1, corrupted
from cfsl.presets.hyper import paper_2_changes, paper_2_rate
from cfsl.presets.profiles import PROFILES
from cfsl.presets.suites import SUITES, suites_named
from cfsl.runs.data import open_data
from cfsl.sampling.feasible import require_feasible
from cfsl.spec import TaskSpec
from cfsl.training.recipes import fitted_to, recipe_for

pytestmark = pytest.mark.usefixtures("glyphs")
DATA = ("glyphs-400x20",)
"""52 test classes, 20 images each: large enough for most columns."""


def cells(suite: str, profile: str = "quick", **more):
    return cells_of(Request(suite, profile, **{"data": DATA, **more}))


def test_table_1_has_eight_methods_and_eleven_columns():
    assert len(SUITES["table1"].learners) == 8 and len(TABLE_1) == 11
    assert len(cells("table1")) == 88 and len(cells("table1", "paper")) == 88 * 3
    types = {name: (spec.task_type, spec.nss, spec.interval) for name, spec in TABLE_1.items()}
    assert (
        types["A10"] == ("A", 10, 10) and types["C5"] == ("C", 5, 1) and types["D8"] == ("D", 8, 2)
    )


@pytest.mark.parametrize("source", ["table1", "replication", "scaling", "instance"])
def test_every_published_cell_has_a_place_in_its_suite(source):
    suite = SUITES[source]
    for cell in published():
        if cell.source == source:
            assert cell.column in suite.columns(cell.data) and cell.learner in suite.learners
            assert cell.data in suite.data


def test_columns_of_paper_2():
    classes = {
        name: (spec.nss, spec.interval, spec.n_way, spec.classes) for name, spec in SCALING.items()
    }
    assert classes == {
        "baseline1": (4, 2, 5, 10),
        "baseline2": (8, 2, 5, 20),
        "wide1": (4, 2, 10, 20),
        "wide2": (4, 2, 100, 200),
        "deep1": (20, 2, 2, 20),
        "deep2": (80, 2, 5, 200),
    }
    assert [(spec.nss, spec.k_shot, spec.labels) for spec in INSTANCE.values()] == [
        (2, 10, 20), (4, 5, 20), (10, 2, 20), (20, 1, 20),
    ]  # fmt: skip
    assert len(corrupted((0.05, 0.1, 0.2, 0.3))) == 4 * 8


def test_figure_4_goes_to_640_support_sets_and_its_data_set_is_large_enough():
    assert [spec.nss for spec in FIGURE_4.values()] == [1, 2, 5, 10, 20, 40, 80, 160, 320, 640]
    assert FIGURE_4["B640"].classes == 3200 and FIGURE_4["B640"].images_per_class == 2


@pytest.mark.parametrize(
    ("learner", "data", "column", "expected"),
    [
        ("pretrain_tune", "omniglot", "baseline2", {"widths": [512, 1024, 1536]}),
        (
            "pretrain_tune_replay",
            "omniglot",
            "wide2",
            {"widths": [128, 256], "sets": 2, "samples": 50, "steps": 30},
        ),
        (
            "pretrain_tune_replay",
            "omniglot",
            "deep1",
            {"widths": [256, 512, 768], "sets": 5, "samples": 10, "steps": 5},
        ),
        (
            "pretrain_tune_replay",
            "slimagenet64",
            "baseline1",
            {"widths": [256, 512, 768, 1024], "sets": 2, "samples": 5},
        ),
        ("pretrain_tune_replay", "slimagenet64", "deep1", {"sets": 8, "samples": 10, "steps": 5}),
        ("protonet", "omniglot", "deep2", {"widths": [256, 512, 768, 1024]}),
        ("protonet", "slimagenet64", "deep1", {"widths": [128, 256, 384, 512]}),
        (
            "pretrain_tune_replay",
            "omniglot",
            "instance3",
            {"widths": [128, 256, 384], "sets": 5, "samples": 8, "steps": 60},
        ),
    ],
)
def test_hyper_parameters_are_those_of_paper_2(learner, data, column, expected):
    task = {**SCALING, **INSTANCE}[column]
    changes = paper_2_changes(learner, data, column, task)
    net = changes.get("net") or changes["inner.net"]
    found = {"widths": net["widths"], "steps": changes.get("inner.steps")} | changes
    assert {name: found[name] for name in expected} == expected


def test_outer_rates_are_a_tenth_of_those_in_the_tables():
    assert paper_2_rate("protonet", "omniglot", "wide1", SCALING["wide1"]) == 1e-4
    assert paper_2_rate("protonet", "omniglot", "wide2", SCALING["wide2"]) == 1e-3
    assert paper_2_rate("pretrain_tune", "omniglot", "wide1", SCALING["wide1"]) == 1e-3
    assert paper_2_rate("protonet", "omniglot", "instance1", INSTANCE["instance1"]) == 1e-4


def schedule_of(suite: str, learner: str, column: str, profile: str = "paper"):
    run = cells(suite, profile, learners=(learner,), columns=(column,))[0].run
    assert run is not None and run.train is not None
    return run, run.train.training


def test_the_profile_paper_is_the_published_protocol():
    run, training = schedule_of("table1", "sca", "B3")
    assert (training.schedule.epochs, training.schedule.updates, training.schedule.batch) == (
        250,
        500,
        1,
    )
    assert training.schedule.optimizer == "adam" and training.validation_tasks == 600 == run.tasks
    assert run.members == 5 and run.average == "logits" and training.episodes == TaskSpec.type_b(3)
    assert schedule_of("table1", "maml_low", "B3")[1].schedule.optimizer == "adamw"
    run, training = schedule_of("scaling", "protonet", "baseline1")
    assert (training.schedule.epochs, training.validation_tasks, run.members) == (10, 200, 1)
    assert schedule_of("replication", "protonet", "D4")[1].schedule.epochs == 100
    assert schedule_of("replication", "pretrain_tune", "D4")[1].schedule.epochs == 15
    assert schedule_of("instance", "pretrain_tune", "instance1")[1].schedule.epochs == 50
    assert len(cells("scaling", "paper", columns=("baseline1",), learners=("protonet",))) == 5


def trainings(suite: str, profile: str) -> dict[str, int]:
    counts: dict[str, set[str]] = {}
    for run in runs_of(cells(suite, profile)):
        if run.train is not None:
            counts.setdefault(run.train.learner.name, set()).add(run.train.hash)
    return {name: len(hashes) for name, hashes in counts.items()}


def test_what_can_be_shared_is_trained_once():
    quick = trainings("table1", "quick")
    assert quick["pretrain_tune"] == 1 and quick["protonet"] == 1 and quick["maml_low"] >= 9
    paper = trainings("table1", "paper")
    assert (
        paper["pretrain_tune"] == paper["protonet"] == 3 * quick["maml_low"]
    )  # three seeds of every column


def stages_of(profile: str, learner: str, column: str) -> list[str]:
    """Return the tasks that each stage of a training is trained on, the first stage first."""
    train = cells("table1", profile, learners=(learner,), columns=(column,))[0].run.train
    found = []
    while train is not None:
        episodes = train.training.episodes
        found.insert(
            0, f"{train.learner.name.rpartition(':')[2]} {episodes.task_type}{episodes.nss}"
        )
        train = train.start
    return found


def test_the_profile_strong_trains_the_maml_family_in_stages():
    assert stages_of("strong", "maml_high", "B3") == ["metric_start few-shot1", "maml_high B3"]
    assert stages_of("strong", "sca", "B5") == [
        "metric_start few-shot1",
        "maml_high B3",
        "maml_high B5",
        "sca B5",
    ]
    assert stages_of("strong", "maml_high", "C5") == [
        "metric_start few-shot1",
        "maml_high C3",
        "maml_high C5",
    ]
    assert stages_of("strong", "maml_low", "A3") == [
        "protonet few-shot1",
        "maml_low B3",
        "maml_low A3",
    ]
    assert stages_of("strong", "protonet", "B3") == ["protonet few-shot1"]


def test_the_profile_strong_has_networks_of_paper_2_and_chooses_epochs_on_tasks_of_the_column():
    strong = cells("scaling", "strong", learners=("pretrain_tune",), columns=("baseline1",))[0].run
    paper = cells("scaling", "paper", learners=("pretrain_tune",), columns=("baseline1",))[0].run
    assert strong.learner.changes["net"] == paper.learner.changes["net"]
    for run in (
        strong,
        cells("instance", "strong", learners=("pretrain_tune",), columns=("instance3",))[0].run,
    ):
        assert run.train.training.validation == run.task


def test_fine_tuning_has_the_rate_of_paper_2_where_it_has_its_networks():
    for learner, name in (("pretrain_tune", "lr"), ("pretrain_tune_replay", "inner.lr")):
        for profile, rate in (("strong", 0.01), ("paper", 0.01), ("quick", 0.03)):
            run = cells("scaling", profile, learners=(learner,), columns=("baseline1",))[0].run
            assert run.learner.changes[name] == rate, (learner, profile)


def test_protonets_of_paper_2_have_the_cosine():
    for column in (*SCALING, *INSTANCE):
        task = {**SCALING, **INSTANCE}[column]
        assert paper_2_changes("protonet", "omniglot", column, task)["metric"] == "cosine"


def test_a_run_is_known_by_all_that_decides_its_numbers_and_by_nothing_else():
    run = cells("table1", learners=("protonet",), columns=("B3",))[0].run
    assert run is not None
    assert run.replace(piece=7).hash == run.hash
    for change in (
        {"tasks": 5},
        {"seed": 3},
        {"split": "val"},
        {"profile": "own"},
        {"train": None},
        {"task_seed": 1},
    ):
        assert run.replace(**change).hash != run.hash
    other = cells(
        "table1", learners=("protonet",), columns=("B3",), changes={"protonet": {"metric": "dot"}}
    )[0].run
    assert other is not None and other.hash != run.hash and other.train.hash != run.train.hash


def test_every_seed_is_a_run_and_a_training_of_its_own():
    found = [
        cell.run
        for cell in cells("table1", "paper", learners=("init_tune", "protonet"), columns=("B3",))
    ]
    assert [run.seed for run in found] == [0, 1, 2, 0, 1, 2] and len(
        {run.hash for run in found}
    ) == 6
    assert [run.train and run.train.training.seed for run in found] == [None, None, None, 0, 1, 2]
    assert len({run.train.hash for run in found[3:]}) == 3


def test_all_is_every_suite_but_smoke():
    assert set(suites_named("all")) == set(SUITES) - {"smoke"}


def test_corrupted_targets_are_for_the_test_alone():
    run = cells("corruption", "paper", learners=("protonet",), columns=("instance2-noise-0.4",))[
        0
    ].run
    assert run is not None and run.task.corruption is not None and run.train is not None
    assert (
        run.train.training.episodes.corruption is run.train.training.validation.corruption is None
    )


def test_a_learner_that_shows_only_its_address_is_known_by_its_name():
    from cfsl.learners.description import described

    class Mine: ...

    assert (
        described(Mine())["settings"] == described(Mine())["settings"]
        and "0x" not in described(Mine())["settings"]
    )


def test_a_network_that_was_asked_for_by_a_dotted_name_is_the_one_that_is_trained():
    asked = {"pretrain_tune_replay": {"inner.net.widths": [8, 8]}}
    run = cells("table1", learners=("pretrain_tune_replay",), columns=("D4",), changes=asked)[0].run
    assert run is not None and run.train is not None
    assert (
        run.train.learner.settings["net"]["widths"]
        == [8, 8]
        == run.learner.settings["inner"]["net"]["widths"]
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("learns_means", False),
        ("length_power", 0.0),
        ("views", "one"),
        ("closeness", "cosine"),
        ("axes", 64),
    ],
)
def test_what_changes_the_weights_of_the_champion_is_trained_as_it_was_asked_for(field, value):
    run = cells(
        "table1", learners=("champion",), columns=("B3",), changes={"champion": {field: value}}
    )[0].run
    assert run is not None and run.train is not None
    assert run.train.learner.settings[field] == value == run.learner.settings[field]


@pytest.mark.parametrize("learner", ["protonet", "anil", "pretrain_tune", "champion"])
def test_short_training_never_turns_or_bends_photographs_nor_mirrors_single_characters(
    learner,
):
    photographs = recipe_for("short", learner, TaskSpec.type_b(3), characters=False).augmentation
    assert photographs.mirror
    assert not (
        photographs.degrees or photographs.elastic or photographs.shear or photographs.quarter_turns
    )
    characters = recipe_for("short", learner, TaskSpec.type_b(3)).augmentation
    assert not (characters.mirror or characters.crop or characters.colour)


def test_quick_on_photographs_is_as_the_recipe_and_half_as_long():
    characters = PROFILES["quick"].training("protonet", TaskSpec.type_b(3), True)
    photographs = PROFILES["quick"].training("protonet", TaskSpec.type_b(3), False)
    assert 2 * photographs.schedule.total == characters.schedule.total
    assert (
        photographs.augmentation
        == recipe_for("short", "protonet", TaskSpec.type_b(3), characters=False).augmentation
    )


@pytest.mark.parametrize(
    ("name", "learner", "classes", "images"),
    [
        ("glyphs-60x12", "champion", 38, 5),
        ("glyphs-60x4", "champion", 38, 4),
        ("glyphs-40x3", "champion", 30, 3),
        ("glyphs-40x3", "protonet", 30, 3),
        ("glyphs-40x2", "protonet", 30, 2),
    ],
)
def test_episodes_are_as_wide_and_as_deep_as_training_classes_allow(name, learner, classes, images):
    data = open_data(name, None)
    episodes = fitted_to(data, recipe_for("short", learner, TaskSpec.type_b(3))).episodes
    assert (episodes.n_way, episodes.k_shot + episodes.k_target) == (classes, images)
    require_feasible(data.class_sizes[data.classes_of("train")], episodes, name)


@pytest.mark.parametrize(
    ("classes", "asked", "fitted"),
    [
        (12, TaskSpec.type_b(3), TaskSpec.type_b(2)),
        (20, TaskSpec.type_b(10), TaskSpec.type_b(4)),
        (20, TaskSpec.type_a(18), TaskSpec.type_a(15)),
        (3, TaskSpec.type_b(3), TaskSpec.type_b(3)),
    ],
)
def test_training_is_validated_on_as_many_support_sets_as_validation_classes_allow(
    tmp_path, classes, asked, fitted
):
    """Where not even one can be drawn, the task stays as it is, to be refused with its numbers."""
    names = open_data(DATA[0], None).info.class_names
    parts = {"train": names[:300], "val": names[300 : 300 + classes], "test": names[350:]}
    (tmp_path / "mine.json").write_text(json.dumps(parts))
    data = open_data(DATA[0], str(tmp_path / "mine.json"))
    assert fitted_to(data, recipe_for("short", "protonet", asked)).validation == fitted


def test_a_run_is_the_same_whether_the_usual_split_is_named_or_not():
    hashes = [
        {
            cell.run.hash
            for cell in cells("table1", learners=("protonet",), splits=splits)
            if cell.run
        }
        for splits in (None, "like_omniglot")
    ]
    assert hashes[0] == hashes[1] and hashes[0]
