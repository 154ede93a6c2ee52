"""The documentation is true: its code runs, its commands exist, its numbers are those of cards."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
sys.path.append(str(DOCS / "_ext"))

PAGES = [
    ROOT / "README.md",
    *sorted(p for p in DOCS.rglob("*.md") if not {"_build", "_generated"} & set(p.parts)),
]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


class Block(NamedTuple):
    """A piece of code on a page."""

    page: str
    language: str
    code: str
    excuse: str
    """Why it is not run, from the comment before it; or nothing."""


_FENCE = re.compile(
    r"(?:<!-- not run: (?P<excuse>[^\n]+?) -->\n)?^```(?P<language>[^\n]*)\n(?P<code>.*?)^```$",
    re.M | re.S,
)


@cache
def blocks():
    return [
        Block(name, found["language"].strip(), found["code"], found["excuse"] or "")
        for name, page in zip(NAMES, PAGES, strict=True)
        for found in _FENCE.finditer(page.read_text(encoding="utf-8"))
    ]


def imported(code):
    """Return the packages that a piece of code imports."""
    names = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    return names


def _is_an_example(code):
    """Tell whether code is that of a script in examples/, which tests/test_examples.py runs."""
    return any(
        path.read_text(encoding="utf-8").endswith(code) for path in (ROOT / "examples").glob("*.py")
    )


def export_cards(path):
    from cfsl.cards.card_rows import export, row_of
    from cfsl.cards.collect import collected

    export(
        [row_of(file, card) for file, card in collected([ROOT / "results"]).cards.items()],
        "csv",
        path,
    )


@pytest.mark.parametrize(
    "page", sorted({block.page for block in blocks() if block.language == "python"})
)
def test_the_python_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names, lacking = {"__name__": "page"}, set[str]()
    for block in blocks():
        if (
            block.page != page
            or block.language != "python"
            or block.excuse
            or _is_an_example(block.code)
        ):
            continue
        absent = {name for name in imported(block.code) if importlib.util.find_spec(name) is None}
        lacking |= absent
        if not absent:
            if "results.csv" in block.code:
                export_cards(tmp_path / "results.csv")  # the page has a command that does
            exec(compile(block.code, page, "exec"), names)
    if lacking:
        pytest.skip(
            f"not installed here: {', '.join(sorted(lacking))}; other blocks of the page were run"
        )


def test_what_is_not_run_has_a_reason_and_is_rare():
    excused = [block for block in blocks() if block.excuse]
    assert len(excused) <= 2 and all(len(block.excuse) > 20 for block in excused)


# ---- commands


@cache
def tree():
    import typer.main

    from cfsl.cli import app

    return typer.main.get_command(app)


def commands_shown():
    shown = []
    for block in blocks():
        if block.language in ("", "console", "bash", "sh"):
            lines = block.code.replace("\\\n", " ").split("\n")
            shown += [(block.page, line.strip().removeprefix("$ ")) for line in lines]
    return [(page, line) for page, line in shown if line.startswith("cfsl ")]


def parsed(words):
    """Parse a command line as far as can be done without doing anything; return the command."""
    command, context = tree(), tree().context_class(tree(), info_name="cfsl")
    while hasattr(command, "commands"):
        assert words, "the command is cut short"
        name, words = words[0], words[1:]
        assert name in command.commands, f"there is no '{name}'"
        command = command.commands[name]
        context = command.context_class(command, info_name=name, parent=context)
    given, _, order = command.make_parser(context).parse_args(args=list(words))
    for param in command.params:
        if param.required:
            assert given.get(param.name) not in (None, ()), f"{param.name} is missing"
        value = given.get(param.name)
        choices = getattr(param.type_descriptor.annotation, "__members__", None)
        if choices and isinstance(value, str):
            assert value in [member.value for member in choices.values()], (
                f"{param.name} cannot be {value}"
            )
    assert order is not None
    return command


@pytest.mark.parametrize("page", sorted({page for page, _ in commands_shown()}))
def test_every_command_on_a_page_can_be_given(page):
    for where, line in commands_shown():
        if where == page:
            try:
                parsed(shlex.split(line, comments=True)[1:])
            except Exception as error:
                pytest.fail(f"{page}: {line}\n{error}")


@pytest.mark.parametrize(
    "line", ["cfsl tasks draw", "cfsl eval", "cfsl eval protonet --nsss 3", "cfsl data add x"]
)
def test_a_command_that_is_wrong_would_be_found(line):
    with pytest.raises(Exception, match=r"there is no 'draw'|learner is missing|--nsss|is missing"):
        parsed(shlex.split(line)[1:])


# ---- pages that are written from the code


@pytest.fixture(scope="module")
def generated():
    from command_pages import command_pages
    from learner_pages import learner_pages

    return learner_pages(ROOT) | command_pages()


def test_every_learner_has_a_page_with_its_text_fields_equation_and_cards(generated):
    from equations import EQUATIONS

    from cfsl.cards.collect import collected
    from cfsl.learners.registry import LEARNERS

    assert EQUATIONS.keys() == LEARNERS.keys()
    for name, entry in LEARNERS.items():
        page, learner = generated[f"learners/{name}.md"], entry.build()
        text = sys.modules[type(learner).__module__].__doc__
        assert text.split("\n", 1)[0] in page and EQUATIONS[name] in page
        assert all(
            f"| `{field}` |" in page for field in type(learner).model_fields if field != "kind"
        )
        assert ("## Where it departs" in page) == (
            "Where it departs" in text or "inner_loop.py" in text
        ), name
    for path, card in (
        collected([ROOT / "results"]).cards.items() if (ROOT / "results").is_dir() else ()
    ):
        if (name := card.learner.name) in LEARNERS:
            assert str(path.relative_to(ROOT)) in generated[f"learners/{name}.md"]
            assert f"{100 * card.metrics.accuracy.mean:.2f}" in generated[f"learners/{name}.md"]


def test_what_an_attribute_says_of_itself_is_on_the_page(generated):
    assert "| `decay` | `0.9` |" in generated["learners/ewc_init.md"]
    assert "Of the older Fisher information, if `online`." in generated["learners/ewc_init.md"]
    assert "On every support set." in generated["learners/maml_low.md"]


def test_every_command_and_option_is_on_a_page(generated):
    from command_pages import walk

    for name, top in tree().commands.items():
        page = generated[f"commands/{name}.md"]
        for path, command in walk(name, top):
            assert f"# `cfsl {path}`" in page
            for param in command.params:
                if param.param_type_name == "option" and not param.hidden:
                    assert all(
                        f"`{option}`" in page for option in (*param.opts, *param.secondary_opts)
                    ), param.opts


def test_examples_on_generated_pages_can_be_given(generated):
    for name, page in generated.items():
        for line in re.findall(r"(?m)^```console\n(cfsl .*)$", page):
            try:
                parsed(shlex.split(line)[1:])
            except Exception as error:
                pytest.fail(f"{name}: {line}\n{error}")


def test_the_api_page_has_every_name_and_what_its_docstring_says_first():
    from api_page import PAGE, names, remade

    import cfsl

    page = PAGE.read_text("utf-8")
    assert remade(page) == page, "run 'python docs/_ext/api_page.py'"
    assert {f"cfsl.{name}" for name in cfsl.__all__} <= set(names(page))
    rows = dict(re.findall(r"(?m)^\| `([\w.]+)` \| (.+) \|$", page))
    assert set(names(page)) == rows.keys() and all(text.endswith(".") for text in rows.values())
    assert rows["cfsl.Task"] == "One task: support sets in order, and a target set."


def test_signatures_lose_their_bounds_and_nothing_else():
    from cfsl_pages import without_annotated

    text = (
        "(a: ~typing.Annotated[int, Ge(ge=1), Le(le=9)] = 5, "
        "b: Annotated[~x.A | B, F(k='c')] | None, c: tuple[int])"
    )
    assert without_annotated(text) == "(a: int = 5, b: ~x.A | B | None, c: tuple[int])"


@pytest.mark.slow
def test_the_documentation_is_built_without_a_warning(tmp_path):
    pytest.importorskip("furo")
    pytest.importorskip("myst_parser")
    import subprocess

    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "sphinx",
            "-q",
            "-W",
            "--keep-going",
            "-b",
            "html",
            str(DOCS),
            str(tmp_path / "html"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "html" / "_generated" / "learners" / "protonet.html").exists()


# ---- numbers


@pytest.fixture(scope="module")
def readme_rows():
    """The rows of the README's results table: the cells of each, by its label."""
    from readme_table import BEGIN, END

    made = (ROOT / "README.md").read_text("utf-8").split(BEGIN)[1].split(END)[0]
    _, _, *rows = [line.strip("| ").split(" | ") for line in made.strip().split("\n")]
    return {label: cells for label, *cells in rows}


def cards_of_row(label, column):
    """Return the cards of one cell, found by their file names; and what of them it shows."""
    from cfsl.cards.card import read_card

    learner = re.match(r"`(\w+)`", label)[1]
    profile = "strong" if "in stages" in label else "quick"
    name = f"omniglot-{column[0]}-nss{column[1:]}-{learner}-{profile}-s*.json"
    files = (ROOT / "results" / f"omniglot-{profile}").glob(name)
    cards = [card for card in map(read_card, files) if card.tasks.spec["n_way"] == 5]
    if "epochs together" in label:
        return cards, [card.ensemble.metrics for card in cards if card.ensemble]
    return cards, [card.metrics for card in cards]


README_COLUMNS = [["A3", "A5", "A10"], ["B3", "B5", "B10"], ["C3", "C5", "C10"], ["D4", "D8"]]


def test_the_table_of_the_readme_is_what_the_cards_say(readme_rows):
    from readme_table import readme_table, spliced

    readme = (ROOT / "README.md").read_text("utf-8")
    assert spliced(readme, readme_table(ROOT)) == readme, "run 'make leaderboard'"
    ours = {label: cells for label, cells in readme_rows.items() if label.startswith("`")}
    assert len(ours) >= 8 and len(readme_rows) <= 12

    for label, (_, *cells) in ours.items():
        for columns, text in zip(README_COLUMNS, cells, strict=True):
            expected = []
            for column in columns:
                _, metrics = cards_of_row(label, column)
                means = [one.accuracy.mean for one in metrics]
                expected.append(f"{100 * sum(means) / len(means):.2f}" if means else "-")
            assert text == ("/".join(expected) if set(expected) != {"-"} else "-")


def test_the_table_of_the_readme_says_how_short_a_training_was(readme_rows):
    short = []
    for label, (stated, *_) in readme_rows.items():
        if not label.startswith("`"):
            continue
        updates, share = re.fullmatch(r"([\d,]+) \(([\d.]+)\)", stated).groups()
        found = [
            card.training.content()
            for columns in README_COLUMNS
            for column in columns
            for card in cards_of_row(label, column)[0]
        ]
        assert int(updates.replace(",", "")) == max(map(all_updates, found))
        assert share == f"{100 * max(map(all_updates, found)) / 125_000:.1f}"
        short.append(float(share) < 10)
    text = " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert all(short) == ("every row had less than a tenth of the published 125,000" in text)


def all_updates(training):
    """Return the updates of a training and of the stages before it."""
    own = training["schedule"]["epochs"] * training["schedule"]["updates"]
    return own + (all_updates(training["start"]["training"]) if training.get("start") else 0)


def test_published_rows_of_the_readme_have_the_best_of_either_paper(readme_rows):
    from cfsl.cards.published import published

    of = {"one model": ["replication_single"], "five models together": ["table1", "replication"]}
    for word, sources in of.items():
        (cells,) = [cells for label, (_, *cells) in readme_rows.items() if label.endswith(word)]
        for columns, text in zip(README_COLUMNS, cells, strict=True):
            numbers = re.findall(r"[\d.]+", text.split("(")[0])
            statuses = set()
            for column, number in zip(columns, numbers, strict=bool(numbers)):
                there = [
                    one
                    for one in published()
                    if one.data == "omniglot" and one.column == column and one.source in sources
                ]
                there = [one for one in there if one.status != "superseded"] or there
                best = max(there, key=lambda one: one.accuracy)
                assert number == f"{100 * best.accuracy:.2f}" and f"`{best.learner}`" in text
                statuses.add(best.status)
            assert text.startswith("≈") == (statuses == {"trend"})
            assert text.startswith("*") == (statuses == {"superseded"})
            assert (text == "-") == (not statuses)
    assert "≈ 97.12/95.93/92.43 (`protonet`)" in cells


def test_the_readme_can_be_read_in_a_few_minutes():
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.split()) <= 1200
    order = ["Install", "Sixty seconds", "*NSS*", "*CCI*", "| A,", "| B,", "| C,", "| D,",
             "How to read", "## Results", "Your learner", "Your images", "Reproduce"]  # fmt: skip
    places = [text.index(word) for word in order]
    assert places == sorted(places)


@pytest.fixture(scope="module")
def results():
    from findings_tables import Results
    from learner_pages import cards_below

    return Results(ROOT, cards_below(ROOT / "results"))


def pages_with_numbers():
    from findings_tables import pages

    return sorted(str(page.relative_to(ROOT)) for page in pages(ROOT))


@pytest.mark.parametrize("page", pages_with_numbers())
def test_tables_and_numbers_of_the_findings_are_what_the_cards_say(page, results):
    from findings_tables import remade

    text = (ROOT / page).read_text("utf-8")
    assert remade(results, text) == text, "run 'make leaderboard'"


def test_a_table_of_the_findings_has_the_numbers_of_its_cards(results):
    from findings_tables import made_table

    plan = """
    columns = ["B3 / C3", ["ATM", "B3", "atm"]]
    rows = [
      "protonet",
      ["of a file", "omniglot/multiproto-{}.json"],
      "multiproto - protonet",
      ["printed", "published=table1 protonet"],
      ["chance", "text=20"],
    ]
    """
    lines = made_table(results, plan).strip().split("\n")
    (card,) = (ROOT / "results" / "omniglot-quick").glob("omniglot-B-nss3-protonet-quick-s0-*.json")
    means = json.loads(card.read_text("utf-8"))["metrics"]
    accuracy, atm = 100 * means["accuracy"]["mean"], means["atm"]["total"]

    assert lines[0] == "|  | B3 / C3 | ATM |"
    assert lines[2].startswith(f"| `protonet` | {accuracy:.2f} / ")
    assert lines[2].endswith(f" | {atm:.4g} |")
    assert lines[3].startswith("| of a file | - / ")
    assert re.fullmatch(r"\| `multiproto` - `protonet`, paired \| \+0.00 .* \|  \|", lines[4])
    assert lines[5:] == ["| printed | 95.30 / *45.44* |  |", "| chance | 20 | 20 |"]


def test_a_number_of_the_findings_without_a_card_is_refused(results):
    from findings_tables import remade

    with pytest.raises(SystemExit, match="there is no card for 'protonet' on B99"):
        remade(results, "<!-- number: protonet on B99 --><!-- from cards -->")


def test_the_errata_have_the_numbers_of_papers_and_cards():
    from measured import measured

    from cfsl.cards.collect import collected
    from cfsl.cards.published import published_cell

    assert "_generated/measured.inc" in (DOCS / "errata.md").read_text(encoding="utf-8")
    cards = collected([ROOT / "results"]).cards
    superseded, sound = measured(ROOT).split("Sound cells")
    assert (
        "| `protonet` | omniglot | D4 | 48.98 |" in superseded
        and "| `protonet` | omniglot | B3 | 95.30 |" in sound
    )
    for status, text in (("superseded", superseded), ("sound", sound)):
        for learner, data, column, printed, ours, path in re.findall(
            r"(?m)^\| `(\w+)` \| (\w+) \| (\w+) \| ([\d.]+) \| ([\d.]+) \+- [\d.]+ \| `(\S+)` \|$",
            text,
        ):
            cell, card = published_cell("table1", data, learner, column), cards[ROOT / path]
            assert f"{100 * cell.accuracy:.2f}" == printed and cell.status == status
            assert card.learner.name == learner and card.tasks.count == 600
            assert f"{100 * card.metrics.accuracy.mean:.2f}" == ours


def test_the_errata_count_the_published_cells_rightly():
    from collections import Counter

    from cfsl.cards.published import published

    counts, page = (
        Counter((cell.source, cell.status) for cell in published()),
        (DOCS / "errata.md").read_text(),
    )
    assert f"Of the {len(published())} cells" in page
    assert f"| {counts['table1', 'sound']} | {counts['table1', 'superseded']} | |" in page
    assert (
        f"| | | {counts['replication', 'trend'] + counts['replication_single', 'trend']} |" in page
    )
    assert f"| | | {counts['scaling', 'trend'] + counts['instance', 'trend']} |" in page
    of = counts["table1", "sound"] + counts["table1", "superseded"]
    assert f"{counts['table1', 'superseded']} of the {of} cells" in (DOCS / "faq.md").read_text()


# ---- what the text must not hold


@pytest.mark.parametrize("page", NAMES)
def test_links_between_pages_lead_somewhere(page):
    text = _FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert target.startswith("http") or ((ROOT / page).parent / target).exists(), target


@pytest.mark.parametrize("page", NAMES)
def test_included_files_exist(page):
    for target in re.findall(
        r"\{literalinclude\} (\S+)", (ROOT / page).read_text(encoding="utf-8")
    ):
        assert ((ROOT / page).parent / target).exists(), target


@pytest.mark.parametrize("page", NAMES)
def test_no_page_holds_machine_paths_or_addresses_of_package_registries(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert not re.search(
        r"/work/|/root/|/home/|/tmp/|pypi\.org|pythonhosted|download\.pytorch", text
    )


def test_every_page_is_in_the_index():
    listed = set(re.findall(r"(?m)^([\w/-]+)$", (DOCS / "index.md").read_text(encoding="utf-8")))
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in PAGES[1:]} - {"index"}
    assert pages <= listed, sorted(pages - listed)
