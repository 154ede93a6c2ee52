"""The report: one HTML file that holds all it shows, from cards and what was found out about them."""

from __future__ import annotations

import base64
import gzip
import importlib.util
import json
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from cfsl import __version__
from cfsl.presets.board import Found, boards
from cfsl.report.bibliography import ENTRIES
from cfsl.report.card_view import card_id, card_view
from cfsl.report.draw_task import describe_spec
from cfsl.report.evidence import NOTHING, Evidence
from cfsl.report.images import Answered, TaskPicture
from cfsl.report.leaderboard import Cell, Leaderboard, Row, leaderboards, places, without_repeats
from cfsl.report.page_charts import charts_of
from cfsl.report.styles import DARK, LIGHT
from cfsl.report.tables import headline, plus_minus
from cfsl.spec import TaskSpec

_FILES = resources.files("cfsl.report") / "page_files"
_FIGURES_NEED = {"altair": "altair", "vl_convert": "vl-convert-python"}
"""Modules that draw the figures of a page, and the packages that have them: the extra `report`."""


@dataclass(frozen=True)
class SweepPicture:
    """The picture of a sweep."""

    title: str
    alt: str
    path: str
    uri: str


@dataclass(frozen=True)
class Material:
    """All that goes on a page."""

    folders: Sequence[str]
    cards: Sequence[Found]
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    """By the path of a card; what is missing was not looked at."""
    damaged: Sequence[str] = ()
    """What is wrong with files that should be cards."""
    others: int = 0
    """Files of other kinds, which are skipped."""
    pictures: Sequence[TaskPicture] = ()
    answered: Sequence[Answered] = ()
    sweeps: Sequence[SweepPicture] = ()
    notes: Sequence[str] = ()
    """What had to be left out, and why."""
    live: bool = False
    """Whether the page is served and asks for news."""


def page(material: Material) -> str:
    """Return the page."""
    every = boards(material.cards)
    ranked = leaderboards(without_repeats(every), material.evidence)
    lacking = lacking_for_figures()
    charts = [] if lacking else charts_of(every, ranked, material.cards, material.evidence)
    views = {card_id(one.path): card_view(one, _known(material, one)) for one in material.cards}
    cited = [key for key in ENTRIES if any(key in view["cite"] for view in views.values())] or [
        "cfsl"
    ]
    return (
        _environment()
        .get_template("page.html.jinja")
        .render(
            version=__version__,
            nonce=secrets.token_urlsafe(16),
            live=material.live,
            folders=material.folders,
            cards=material.cards,
            facts=_facts(material.cards, ranked, charts),
            boards=ranked,
            profiles=list(dict.fromkeys(board.profile for board in ranked)),
            all_columns=list(dict.fromkeys(column for board in ranked for column in board.columns)),
            has_published=any(board.has_published for board in ranked),
            charts=charts,
            pictures=material.pictures,
            answered=material.answered,
            sweeps=material.sweeps,
            loose=_loose(material.cards, ranked),
            verdicts=_verdicts(material),
            notes=[*material.notes, lacking] if lacking else material.notes,
            damaged=material.damaged,
            others=material.others,
            bibliography="\n\n".join(ENTRIES[key] for key in cited),
            ids=_ids,
            standing=_standing,
            apart=_apart,
            css=Markup(_css()),
            javascript=Markup(_file("page.js")),
            live_javascript=Markup(_file("live.js")),
            vega=Markup(vega_bundle()) if charts else "",
            cards_packed=_packed(views),
            charts_json=_json([asdict(chart) for chart in charts]),
            answers_json=_json([asdict(one) for one in material.answered]),
            references_json=_json({key: ENTRIES[key] for key in cited}),
        )
    )


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
    made.filters["breakable"] = _breakable
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


def _known(material: Material, found: Found) -> Evidence:
    return material.evidence.get(found.path, NOTHING)


def _facts(
    cards: Sequence[Found], ranked: Sequence[Leaderboard], charts: Sequence[Any]
) -> list[tuple[int, str]]:
    """Count what is here."""
    learners = {found.card["learner"]["name"] for found in cards}
    data = {found.card["tasks"]["data"] for found in cards}
    counts = (
        (len(cards), "card"),
        (len(learners), "learner"),
        (len(data), "data set"),
        (len(ranked), "leaderboard"),
        (len(charts), "figure"),
    )
    return [(count, name if count == 1 else f"{name}s") for count, name in counts if count]


def _loose(cards: Iterable[Found], ranked: Iterable[Leaderboard]) -> list[dict[str, str]]:
    """Return the cards that are on no board, as rows."""
    placed = {one.path for _, _, _, cell in places(ranked) for one in cell.cards}
    return [
        {
            "id": card_id(found.path),
            "learner": str(found.card["learner"]["name"]),
            "data": f"{found.card['tasks']['data']}/{found.card['tasks']['split']}",
            "what": describe_spec(TaskSpec(**found.card["tasks"]["spec"])),
            "accuracy": plus_minus(headline(found.card)["accuracy"]),
        }
        for found in cards
        if found.path not in placed
    ]


def _verdicts(material: Material) -> list[tuple[str, int]]:
    return list(Counter(_known(material, found).status for found in material.cards).items())


def _ids(cell: Cell) -> list[str]:
    return [card_id(found.path) for found in cell.cards]


def _standing(row: Row, column: str, cell: Cell) -> str:
    """Say how a cell stands, for those who point at it."""
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


def _apart(cell: Cell) -> str:
    """Say how far ours is from the published number."""
    difference, mean = cell.entry.difference, cell.entry.mean
    if difference is None or mean is None:
        return ""
    inside = "; the published number is inside our interval" if cell.entry.is_inside else ""
    ours = plus_minus({"mean": mean, "ci95": cell.entry.ci95})
    return f"{ours}, {100 * difference:+.2f} points{inside}"
