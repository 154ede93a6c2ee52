"""cfsl report, table and figure: cards as a page, as tables and as figures."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cfsl.cli.console import complain, counting, print_json, say
from cfsl.cli.option_values import listed
from cfsl.cli.verification import Json, ManifestFolder, counted, skipped
from cfsl.errors import CardError, SpecError, lookup

if TYPE_CHECKING:
    from cfsl.cards.collect import CardFile
    from cfsl.cards.evidence import Evidence
    from cfsl.cards.evidence_reader import EvidenceReader
    from cfsl.report.board import Board
    from cfsl.report.leaderboard import Leaderboard
    from cfsl.report.material import Material

_USUAL = (Path("bench"), Path("results"))
_DAMAGED = 1
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
    """Write one page with leaderboards, figures and cards, which needs no network.

    The exit code is 1 if cards are damaged.
    """
    from cfsl.cards.evidence_reader import EvidenceReader
    from cfsl.report.page import lacking_for_figures
    from cfsl.report.write import write_report

    places = _places(folders)
    reader = EvidenceReader(manifests, verify=verify)
    if lacking := lacking_for_figures():
        complain(lacking)

    if serve:
        _serve(places, reader, pictures=pictures, port=port)
        return

    material = write_report(places, out, reader, pictures=pictures, progress_bar=counting)
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
    from cfsl.report.leaderboard_forms import FORMS, csv_form, leaderboard_page
    from cfsl.report.material import cards_on_boards
    from cfsl.report.write import write_file

    lookup({**SUITES, "all": None}, suite, "suite")
    write = lookup(FORMS, form, "format")
    places = _places(folders)
    found = cards_on_boards(places)
    boards = _chosen(found.boards, data, profile)

    ranked = _ranked(boards, suite, manifests, tested=form in ("markdown", "latex"))
    if suite == "all" and form == "markdown":
        named = " ".join(str(place) for place in places)
        command = f"cfsl table all {named} --format markdown" + (f" --out {out}" if out else "")
        text = leaderboard_page(ranked, out, command)
    else:
        text = write(ranked, out)
    if out is not None:
        write_file(out, text.encode())

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
    _leave(found.damaged)


def figure(
    name: Annotated[
        str,
        typer.Argument(
            metavar="FIGURE",
            help="figure3, figure4, scaling, instance, corruption, forgetting, pareto, learning, "
            "ranking or paired.",
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
    """Draw a figure of the papers from cards, or a comparison of learners, with error bars."""
    from cfsl.report.figure_choice import Wanted, drawn
    from cfsl.report.material import cards_on_boards
    from cfsl.report.write import write_file

    path = out or Path(f"{name}.pdf")
    if path.suffix.lower() not in (".pdf", ".svg", ".png"):
        raise SpecError(f"{path} is none of .pdf, .svg and .png")

    found = cards_on_boards(_places(folders))
    boards = _chosen(found.boards, data, profile, splits)
    if not boards and (data or profile or splits):
        asked = {"data": data, "splits": splits, "profile": profile}
        named = " ".join(f"--{option} {value}" for option, value in asked.items() if value)
        raise SpecError(f"no card here fits {named}; 'cfsl results list' shows what there is")

    def read_evidence(cards: Sequence[CardFile], *, verify: bool) -> Mapping[str, Evidence]:
        return _evidence(cards, manifests, verify=verify)

    named_columns, named_learners = listed("columns", columns) or (), listed("learners", learners)
    wanted = Wanted(named_columns, named_learners or (), against, suite)
    picture = drawn(name, boards, found.cards, wanted, read_evidence)
    content = io.BytesIO()  # matplotlib has errors of its own for a disk that is full
    picture.savefig(content, dpi=200, format=path.suffix[1:].lower())
    write_file(path, content.getvalue())

    if json:
        print_json({"path": str(path), "figure": name})
    else:
        say(f"wrote {path}")
    _leave(found.damaged)


def _places(folders: list[Path] | None) -> list[Path]:
    places = folders or [place for place in _USUAL if place.is_dir()]
    if not places:
        raise CardError("name the folders of cards: there is no 'bench' and no 'results' here")
    return places


def _chosen(
    boards: Sequence[Board], data: str | None, profile: str | None, splits: str | None = None
) -> list[Board]:
    """Return the boards that the options ask for."""
    return [
        board
        for board in boards
        if data in (None, board.data)
        and profile in (None, board.profile)
        and splits in (None, board.splits)
    ]


def _ranked(
    boards: Sequence[Board], suite: str, manifests: Path | None, *, tested: bool
) -> list[Leaderboard]:
    """Rank the boards that are wanted; where ties are shown, by tests on the answers."""
    from cfsl.report.leaderboard import leaderboards, without_repeats

    of_suite = [board for board in boards if board.suite == suite]
    chosen = without_repeats(boards) if suite == "all" else of_suite
    if not chosen:
        raise CardError(f"no card here belongs to {suite}; 'cfsl results list' shows what there is")
    if not tested:
        return leaderboards(chosen, {})

    # The committed leaderboard has to come out the same for everybody; its cards are verified by
    # another command, and their tasks come from manifests alone.
    is_committed = suite == "all"
    once = {one.path: one for board in chosen for one in board.cards}
    evidence = _evidence(
        list(once.values()), manifests, verify=not is_committed, draws=not is_committed
    )
    return leaderboards(chosen, evidence)


def _evidence(
    cards: Sequence[CardFile], manifests: Path | None, *, verify: bool, draws: bool = True
) -> dict[str, Evidence]:
    """Read the answers of cards, with progress."""
    from cfsl.cards.evidence_reader import EvidenceReader

    reader = EvidenceReader(manifests, verify=verify, draws=draws)
    with counting("reading answers", len(cards), "cards") as progress:
        return reader.read_all(cards, progress)


def _serve(places: Sequence[Path], reader: EvidenceReader, *, pictures: bool, port: int) -> None:
    """Serve until somebody stops it."""
    from cfsl.report.material import material_at
    from cfsl.report.page import page
    from cfsl.report.serve import LOOPBACK, Built, server, stamp_of

    reported: set[str] = set()

    def build() -> str:
        material = material_at(places, reader, pictures=pictures, progress_bar=counting)
        _complain_once(material, reported)
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


def _complain_once(material: Material, reported: set[str]) -> None:
    """Name every damaged card that has not been named yet."""
    for problem in material.damaged:
        if problem not in reported:
            complain(problem)
            reported.add(problem)


def _leave(damaged: Collection[str]) -> None:
    """Name every damaged card and end with 1, if there are any."""
    for problem in damaged:
        complain(problem)
    if damaged:
        raise typer.Exit(_DAMAGED)
