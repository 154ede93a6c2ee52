"""cfsl report, table and figure: cards as a page, as tables and as figures."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Collection, Sequence
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cfsl.cli.console import complain, print_json, say
from cfsl.cli.option_values import listed
from cfsl.cli.verification import Json, ManifestFolder, counted, skipped
from cfsl.errors import CardError, SpecError, lookup

if TYPE_CHECKING:
    from cfsl.cards.collect import Collection as Collected
    from cfsl.cli.gathering import Gatherer
    from cfsl.presets.board import Board, Found
    from cfsl.report.leaderboard import Leaderboard
    from cfsl.report.page import Material

_USUAL = (Path("bench"), Path("results"))
_DAMAGED = 1
_REPORT = 'name="generator" content="cfsl'
Folders = Annotated[
    list[Path] | None,
    typer.Argument(help="Result cards, or folders of them; default: 'bench' and 'results'."),
]
Data = Annotated[str | None, typer.Option(help="Only this data set.")]
Profile = Annotated[
    str | None, typer.Option(help="Only this profile: smoke, quick, strong, paper or own.")
]


def report(
    folders: Folders = None,
    out: Annotated[Path, typer.Option(help="Where to write the page.")] = Path("report.html"),
    manifests: ManifestFolder = None,
    verify: Annotated[
        bool, typer.Option(help="Work out every number again from the answers.")
    ] = True,
    pictures: Annotated[
        bool, typer.Option(help="Show real tasks, of data sets that are installed here.")
    ] = True,
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Serve the page on this machine; it follows as cards arrive."),
    ] = False,
    port: Annotated[
        int, typer.Option(help="Port of --serve; 0: a free one.", min=0, max=65535)
    ] = 8000,
    json: Json = False,
) -> None:
    """Write one page with leaderboards, figures and cards, which needs no network; exit code 1 if cards are damaged."""
    from cfsl.cli.gathering import Gatherer
    from cfsl.report.page import lacking_for_figures

    places = _places(folders)
    gatherer = Gatherer(manifests, verify=verify)
    if lacking := lacking_for_figures():
        complain(lacking)

    if serve:
        _serve(places, gatherer, pictures=pictures, port=port)
        return
    material = write_report(places, out, gatherer, pictures=pictures)
    size = out.stat().st_size
    if json:
        print_json(
            {
                "path": str(out),
                "bytes": size,
                "cards": len(material.cards),
                "damaged": list(material.damaged),
            }
        )
    else:
        cards = counted(len(material.cards), "card") + skipped(material.others)
        say(f"wrote {out} ({size / 1e6:.1f} MB): {cards}")
    _leave(material.damaged)


def write_report(
    places: Sequence[Path], out: Path, gatherer: Gatherer | None = None, *, pictures: bool = True
) -> Material:
    """Write the page of all cards at these places, and return what is on it; another page than ours is not replaced."""
    from cfsl.cli.gathering import Gatherer
    from cfsl.report.page import page

    _require_ours(out)
    material = _material(places, gatherer or Gatherer(), pictures=pictures)
    _write(out, page(material).encode())
    return material


def table(
    suite: Annotated[
        str, typer.Argument(help="A suite of 'cfsl bench', or all: every leaderboard.")
    ],
    folders: Folders = None,
    data: Data = None,
    profile: Profile = None,
    form: Annotated[str, typer.Option("--format", help="text, markdown, latex or csv.")] = "text",
    out: Annotated[Path | None, typer.Option(help="Where to write; default: the terminal.")] = None,
    manifests: ManifestFolder = None,
    json: Json = False,
) -> None:
    """Print or write the table of a suite from cards, ours beside the published numbers."""
    from cfsl.presets.suites import SUITES
    from cfsl.report.table_forms import FORMS, csv_form, leaderboard_page

    lookup({**SUITES, "all": None}, suite, "suite")
    write = lookup(FORMS, form, "format")
    places = _places(folders)
    found, boards = _boards(places, data, profile)
    ranked = _ranked(boards, suite, manifests, tested=form in ("markdown", "latex"))
    if suite == "all" and form == "markdown":
        named = " ".join(str(place) for place in places)
        command = f"cfsl table all {named} --format markdown" + (f" --out {out}" if out else "")
        text = leaderboard_page(ranked, out, command)
    else:
        text = write(ranked, out)
    if out is not None:
        _write(out, text.encode())
    if json:
        print_json(
            {
                "boards": [board.title for board in ranked],
                "path": out and str(out),
                "csv": csv_form(ranked, out),
            }
        )
    elif out is None:
        for line in text.rstrip("\n").split("\n"):
            say(line)
    else:
        say(f"wrote {counted(len(ranked), 'table')} to {out}")
    _leave(found.damaged.values())


def figure(
    name: Annotated[
        str,
        typer.Argument(
            metavar="FIGURE",
            help="figure3, figure4, scaling, instance, corruption, forgetting, pareto, learning, ranking or paired.",
        ),
    ],
    folders: Folders = None,
    out: Annotated[
        Path | None, typer.Option(help="A .pdf, .svg or .png; default: FIGURE.pdf.")
    ] = None,
    data: Data = None,
    profile: Profile = None,
    columns: Annotated[
        str | None,
        typer.Option(
            help="Of ranking and paired: only these, with commas; of forgetting: which one."
        ),
    ] = None,
    learners: Annotated[
        str | None, typer.Option(help="Of ranking and paired: only these, with commas.")
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Of paired: whose accuracy the others' is compared with.")
    ] = None,
    suite: Annotated[
        str | None, typer.Option(help="Of ranking and paired: whose columns; default: table1.")
    ] = None,
    splits: Annotated[
        str | None, typer.Option(help="Only tasks of this split file, such as reference.")
    ] = None,
    manifests: ManifestFolder = None,
    json: Json = False,
) -> None:
    """Draw a figure of the papers from cards, who is better in each column, or by how much; with error bars."""
    from cfsl.cli.drawing import Wanted, drawn

    path = out or Path(f"{name}.pdf")
    if path.suffix.lower() not in (".pdf", ".svg", ".png"):
        raise SpecError(f"{path} is none of .pdf, .svg and .png")
    found, boards = _boards(_places(folders), data, profile)
    boards = [board for board in boards if splits in (None, board.splits)]
    if not boards and (data or profile or splits):
        asked = {"data": data, "splits": splits, "profile": profile}
        named = " ".join(f"--{option} {value}" for option, value in asked.items() if value)
        raise SpecError(f"no card here fits {named}; 'cfsl results list' shows what there is")
    wanted = Wanted(
        listed("columns", columns) or (), listed("learners", learners) or (), against, suite
    )
    picture = drawn(name, boards, _cards(found), wanted, manifests)
    content = io.BytesIO()  # matplotlib has errors of its own for a disk that is full
    picture.savefig(content, dpi=200, format=path.suffix[1:].lower())
    _write(path, content.getvalue())
    if json:
        print_json({"path": str(path), "figure": name})
    else:
        say(f"wrote {path}")
    _leave(found.damaged.values())


def _places(folders: list[Path] | None) -> list[Path]:
    places = folders or [place for place in _USUAL if place.is_dir()]
    if not places:
        raise CardError("name the folders of cards: there is no 'bench' and no 'results' here")
    return places


def _cards(found: Collected) -> list[Found]:
    """Return the cards, each once: a copy in another folder is no second training seed."""
    from cfsl.presets.board import Found

    once: dict[str, Found] = {}
    for path, card in found.cards.items():
        once.setdefault(dumps(card, sort_keys=True), Found(str(path), card))
    return list(once.values())


def _boards(
    places: Sequence[Path], data: str | None, profile: str | None
) -> tuple[Collected, list[Board]]:
    """Read cards and put them on boards; damaged cards are left to the caller."""
    from cfsl.cards.collect import collected
    from cfsl.presets.board import boards

    found = collected(places)
    every = boards(_cards(found))
    kept = [
        board for board in every if data in (None, board.data) and profile in (None, board.profile)
    ]
    return found, kept


def _ranked(
    boards: Sequence[Board], suite: str, manifests: Path | None, *, tested: bool
) -> list[Leaderboard]:
    """Rank the boards that are wanted; where ties are shown, by tests on the answers."""
    from cfsl.cli.gathering import Gatherer
    from cfsl.report.leaderboard import leaderboards, without_repeats

    chosen = (
        without_repeats(boards)
        if suite == "all"
        else [board for board in boards if board.suite == suite]
    )
    if not chosen:
        raise CardError(f"no card here belongs to {suite}; 'cfsl results list' shows what there is")
    wanted = {
        one.path: one
        for board in chosen
        for row in board.rows.values()
        for cell in row.values()
        for one in cell
    }
    # The committed leaderboard is everybody's, and its cards are verified by themselves.
    gatherer = Gatherer(manifests, verify=suite != "all", draws=suite != "all")
    evidence = gatherer.all_evidence(wanted.values()) if tested else {}
    return leaderboards(chosen, evidence)


def _material(places: Sequence[Path], gatherer: Gatherer, *, pictures: bool) -> Material:
    """Gather all that goes on the page."""
    from cfsl.cards.collect import collected
    from cfsl.cli.gathering import sweeps_below
    from cfsl.cli.showing import shown
    from cfsl.presets.board import boards
    from cfsl.report.leaderboard import without_repeats
    from cfsl.report.page import Material

    found = collected(places)
    cards = _cards(found)
    evidence = gatherer.all_evidence(cards)
    material = Material(
        folders=[str(place) for place in places],
        cards=cards,
        evidence=evidence,
        damaged=list(found.damaged.values()),
        others=len(found.others),
        sweeps=sweeps_below(places),
    )
    if not pictures:
        return material
    seen = shown(without_repeats(boards(cards)), gatherer)
    return replace(material, pictures=seen.pictures, answered=seen.answered, notes=seen.notes)


def _serve(places: Sequence[Path], gatherer: Gatherer, *, pictures: bool, port: int) -> None:
    """Serve until somebody stops it."""
    from cfsl.report.page import page
    from cfsl.report.serve import LOOPBACK, Built, server

    told: set[str] = set()

    def build() -> str:
        material = _material(places, gatherer, pictures=pictures)
        for problem in material.damaged:
            if problem not in told:
                complain(problem)
                told.add(problem)
        return page(replace(material, live=True))

    built = Built(build, lambda: stamp_of(places))
    try:
        running = server(built, port)
    except OSError as error:
        raise SpecError(
            f"port {port} cannot be had ({error.strerror}); give another, or --port 0"
        ) from error
    with running:
        say(f"http://{LOOPBACK}:{running.server_address[1]}/ (Ctrl-C ends it)")
        typer.get_text_stream("stdout").flush()
        running.serve_forever()


def stamp_of(places: Sequence[Path]) -> str:
    """Return a text that changes when a card, its answers or a sweep below these places does."""
    digest = hashlib.sha256()
    for place in places:
        files = [place] if place.is_file() else sorted(place.rglob("*"))
        for file in files:
            if file.suffix in (".json", ".npz", ".png") and not file.name.startswith("."):
                digest.update(_state(file).encode())
    return digest.hexdigest()[:16]


def _state(file: Path) -> str:
    try:
        state = file.stat()
    except OSError:  # gone since it was listed
        return ""
    return f"{file} {state.st_mtime_ns} {state.st_size}\n"


def _require_ours(path: Path) -> None:
    """Replace a report, but no other page."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            head = file.read(2000)
    except FileNotFoundError:
        return
    except OSError as error:
        raise CardError(f"{path} cannot be written: {error.strerror or error}") from error
    if _REPORT not in head:
        raise CardError(
            f"{path} is there already and no report of cfsl; name another file with --out"
        )


def _write(path: Path, content: bytes) -> None:
    from cfsl.files import written_whole

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as part:
            part.write_bytes(content)
    except OSError as error:
        raise CardError(f"{path} cannot be written: {error.strerror or error}") from error


def _leave(damaged: Collection[str]) -> None:
    """Name every damaged card and end with 1, if there are any."""
    for problem in damaged:
        complain(problem)
    if damaged:
        raise typer.Exit(_DAMAGED)
