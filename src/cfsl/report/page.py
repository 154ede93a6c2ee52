"""The report: one HTML file that holds all it shows."""

from __future__ import annotations

import base64
import gzip
import importlib.util
import json
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from cfsl import __version__
from cfsl.report.bibliography import ENTRIES
from cfsl.report.card_view import card_id, card_view
from cfsl.report.draw_task import describe_spec
from cfsl.report.leaderboard import LeaderboardCell, LeaderboardRow, places
from cfsl.report.material import Material
from cfsl.report.page_charts import Chart, charts_of
from cfsl.report.styles import DARK, LIGHT
from cfsl.report.tables import plus_minus

_FILES = resources.files("cfsl.report") / "page_files"
_FIGURES_NEED = {"altair": "altair", "vl_convert": "vl-convert-python"}
"""Modules that draw the figures of a page, and the packages that have them: the extra `report`."""


@dataclass(frozen=True)
class Document:
    """The page as a whole."""

    version: str
    """Of cfsl."""
    nonce: str
    """What scripts must have so that a browser runs them: no text of a card can guess it."""


@dataclass(frozen=True)
class Contents:
    """What the page shows besides the material, worked out from it."""

    facts: Sequence[tuple[int, str]]
    charts: Sequence[Chart]
    unplaced: Sequence[Mapping[str, str]]
    """Cards that are on no leaderboard, as rows."""
    verdicts: Sequence[tuple[str, int]]
    bibliography: str

    profiles: Sequence[str]
    """Of the leaderboards; so are the columns."""
    columns: Sequence[str]
    has_published: bool


@dataclass(frozen=True)
class Embedded:
    """Styles and scripts, which are parts of the page."""

    css: Markup
    javascript: Markup
    live_javascript: Markup
    vega: Markup | str


@dataclass(frozen=True)
class Data:
    """What the scripts of the page read."""

    cards: str
    charts: Markup
    answers: Markup
    references: Markup


def page(material: Material) -> str:
    """Return the page."""
    boards, lacking = material.leaderboards, lacking_for_figures()
    if lacking:
        material = replace(material, notes=(*material.notes, lacking))
    charts = [] if lacking else _charts(material)
    views = {card_id(one.path): card_view(one, material.evidence_of(one)) for one in material.cards}
    used = [key for key in ENTRIES if any(key in view["cite"] for view in views.values())]
    cited = {key: ENTRIES[key] for key in used or ["cfsl"]}

    contents = Contents(
        facts=_facts(material, charts),
        charts=charts,
        unplaced=_unplaced(material),
        verdicts=_verdicts(material),
        bibliography="\n\n".join(cited.values()),
        profiles=list(dict.fromkeys(board.profile for board in boards)),
        columns=list(dict.fromkeys(column for board in boards for column in board.columns)),
        has_published=any(board.has_published for board in boards),
    )
    embedded = Embedded(
        css=Markup(_css()),
        javascript=Markup(_file("page.js")),
        live_javascript=Markup(_file("live.js")),
        vega=Markup(vega_bundle()) if charts else "",
    )
    data = Data(
        cards=_packed(views),
        charts=_json([asdict(chart) for chart in charts]),
        answers=_json([asdict(one) for one in material.answered]),
        references=_json(cited),
    )
    return (
        _environment()
        .get_template("page.html.jinja")
        .render(
            document=Document(__version__, secrets.token_urlsafe(16)),
            material=material,
            contents=contents,
            embedded=embedded,
            data=data,
        )
    )


def _charts(material: Material) -> list[Chart]:
    return charts_of(material.boards, material.leaderboards, material.cards, material.evidence)


def lacking_for_figures() -> str:
    """Return why a page has no figures here, in one line; nothing if it has them."""
    absent = [
        package
        for module, package in _FIGURES_NEED.items()
        if importlib.util.find_spec(module) is None
    ]
    if not absent:
        return ""
    return (
        f"the page is without its figures, which need {' and '.join(absent)}: "
        "pip install cfsl[report]"
    )


@cache
def vega_bundle() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, for every figure of a page."""
    import vl_convert

    bundle: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub lacks the default
    return bundle.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _environment() -> jinja2.Environment:
    loader = jinja2.FunctionLoader(_file)
    made = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    made.filters |= {
        "breakable": _breakable,
        "card_ids": _card_ids,
        "difference_words": _difference_words,
    }
    made.globals["rank_words"] = _rank_words
    return made


def _breakable(name: str) -> Markup:
    """Let a long name break after an underscore."""
    return Markup("_<wbr>").join(name.split("_"))


def _file(name: str) -> str:
    return (_FILES / name).read_text(encoding="utf-8")


def _css() -> str:
    """Return the style sheet with the colours of the figures in it."""
    text = _file("page.css")
    for place, colours in (("--light-series;", LIGHT), ("--dark-series;", DARK)):
        text = text.replace(
            place, " ".join(f"--series-{n}: {colour};" for n, colour in enumerate(colours))
        )
    return text


def _json(value: Any) -> Markup:
    """Write a value so that no text in it can end the script element that it stands in."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), default=str)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _packed(value: Any) -> str:
    """Write a value as gzipped JSON in base64: many cards have much in common."""
    return base64.b64encode(
        gzip.compress(json.dumps(value, default=str).encode(), mtime=0)
    ).decode()


def _facts(material: Material, charts: Sequence[Chart]) -> list[tuple[int, str]]:
    """Count what is on the page."""
    learners = {found.card.learner.name for found in material.cards}
    data = {found.card.tasks.data for found in material.cards}

    counts = (
        (len(material.cards), "card"),
        (len(learners), "learner"),
        (len(data), "data set"),
        (len(material.leaderboards), "leaderboard"),
        (len(charts), "figure"),
    )
    return [(count, name if count == 1 else f"{name}s") for count, name in counts if count]


def _unplaced(material: Material) -> list[dict[str, str]]:
    """Return the cards that are on no leaderboard, as rows."""
    placed = {one.path for _, _, _, cell in places(material.leaderboards) for one in cell.cards}
    return [
        {
            "id": card_id(found.path),
            "learner": found.card.learner.name,
            "data": f"{found.card.tasks.data}/{found.card.tasks.split}",
            "what": describe_spec(found.card.tasks.task_spec),
            "accuracy": plus_minus(found.card.headline.accuracy),
        }
        for found in material.cards
        if found.path not in placed
    ]


def _verdicts(material: Material) -> list[tuple[str, int]]:
    """Count the cards of every status."""
    statuses = Counter(material.evidence_of(found).status for found in material.cards)
    return [(str(status), count) for status, count in statuses.items()]


def _card_ids(cell: LeaderboardCell) -> list[str]:
    return [card_id(found.path) for found in cell.cards]


def _rank_words(row: LeaderboardRow, column: str, cell: LeaderboardCell) -> str:
    """Say how a cell compares with the best of its column, for those who point at it."""
    seeds = "" if cell.entry.seeds == 1 else f", mean of {cell.entry.seeds} training seeds"
    if cell.entry.seed_std is not None:
        seeds += f" (deviation {100 * cell.entry.seed_std:.2f})"
    if cell.entry.members > 1:
        seeds += f", {cell.entry.members} epochs of a run together"

    if row.breaks_law:
        words = "not ranked"
    elif cell.mark == "best":
        words = "best mean"
    elif cell.mark == "tied":
        words = f"not told from the best (p = {cell.p:.2g})"
    elif cell.p is not None:
        words = f"below the best (p = {cell.p:.2g})"
    else:
        words = "not tested against the best"
    return f"{row.label}, {column}: {words}{seeds}. Opens the card."


def _difference_words(cell: LeaderboardCell) -> str:
    """Say by how much our number differs from the published one."""
    difference = cell.entry.difference
    if difference is None:
        return ""
    inside = "; the published number is inside our interval" if cell.entry.is_inside else ""
    return f"{plus_minus(cell.entry)}, {100 * difference:+.2f} points{inside}"
