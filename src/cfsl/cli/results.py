"""cfsl results: list, show and export result cards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cfsl.cli.console import complain, print_json, say
from cfsl.cli.verification import counted, skipped
from cfsl.errors import CardError, SpecError

if TYPE_CHECKING:
    from cfsl.cards.card_rows import FlatRow

app = typer.Typer(
    no_args_is_help=True,
    help="Look at result cards, and take them elsewhere.",
    epilog="Examples:\n\ncfsl results list results --type B\n\n"
    "cfsl results show results/omniglot/protonet-B3.json\n\n"
    "cfsl results export --format csv --out results.csv",
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Folder = Annotated[Path, typer.Argument(help="Folder of cards, and of folders of cards.")]
Data = Annotated[str | None, typer.Option(help="Only cards of this data set.")]
Learner = Annotated[str | None, typer.Option(help="Only cards of this learner.")]
Type = Annotated[
    str | None, typer.Option("--type", help="Only cards of this task type: A, B, C, D ...")
]
_RESULTS = Path("results")


@app.command("list", epilog="Example: cfsl results list results --data omniglot --type B")
def list_cards(
    folder: Folder = _RESULTS,
    data: Data = None,
    learner: Learner = None,
    type_: Type = None,
    json: Json = False,
) -> None:
    """List the result cards below a folder.

    Damaged ones are named on stderr, and the exit code is 1.
    """
    from cfsl.cards.card_rows import listed, plain

    rows, damaged, others = _rows(folder, {"data": data, "learner": learner, "task_type": type_})
    if json:
        print_json([plain(row) for row in rows])
    else:
        for line in listed(rows):
            say(line)
        say(counted(len(rows), "card") + skipped(others))
    _leave(damaged)


@app.command(epilog="Example: cfsl results show results/omniglot/protonet-B3.json")
def show(card: Annotated[Path, typer.Argument(help="A result card.")], json: Json = False) -> None:
    """Show all that stands on a card."""
    from cfsl.cards.card import RESULT, checked_card, kind_of, read_content
    from cfsl.report.card_text import card_lines

    content = read_content(card)
    kind = kind_of(content)
    read = checked_card(content, card) if kind == RESULT else None

    if json:
        print_json(content)
        return

    if read is None:
        raise CardError(f"{card} is a card of kind '{kind}'; --json prints it as it is")
    for line in card_lines(read):
        say(line)


@app.command(epilog="Example: cfsl results export results --format csv --out results.csv")
def export(
    folder: Folder = _RESULTS,
    form: Annotated[str, typer.Option("--format", help="csv or jsonl.")] = "csv",
    out: Annotated[
        Path | None, typer.Option(help="Where to write; default: results.csv or results.jsonl.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file that is there.")
    ] = False,
    data: Data = None,
    learner: Learner = None,
    type_: Type = None,
    json: Json = False,
) -> None:
    """Write one flat row a card, with the columns that docs/results.md explains."""
    from cfsl.cards.card_rows import EXPORTS, export
    from cfsl.errors import lookup

    lookup(EXPORTS, form, "format")
    path = out or Path(f"results.{form}")
    if path.exists() and not overwrite:
        raise CardError(f"{path} is there already; name another file, or give --overwrite")

    rows, damaged, _ = _rows(folder, {"data": data, "learner": learner, "task_type": type_})
    export(rows, form, path)

    if json:
        print_json({"path": str(path), "cards": len(rows)})
    else:
        say(f"wrote {counted(len(rows), 'card')} to {path}")
    _leave(damaged)


@app.command(
    "published", epilog="Example: cfsl results published --learner maml_low --data omniglot"
)
def published_cells(data: Data = None, learner: Learner = None, json: Json = False) -> None:
    """List the numbers that the papers printed, whether each is sound, and if not, why."""
    from dataclasses import asdict

    from cfsl.cards.published import published

    cells = [
        cell for cell in published() if _fits(cell.data, data) and _fits(cell.learner, learner)
    ]
    if not cells:
        raise SpecError(
            f"the papers have no numbers for learner {learner or 'any'} on {data or 'any data set'}"
        )

    if json:
        print_json([asdict(cell) for cell in cells])
        return

    for cell in cells:
        place = f"{cell.source:<20}{cell.data:<14}{cell.learner:<22}{cell.column:<11}"
        say(f"{place}{100 * cell.accuracy:6.2f}  {cell.status:<11}{cell.reason}")


def _rows(folder: Path, wanted: dict[str, str | None]) -> tuple[list[FlatRow], list[str], int]:
    """Return the wanted cards as rows, the problems of damaged cards, and the number of files that
    are no results.
    """
    from cfsl.cards.card_rows import row_of
    from cfsl.cards.collect import collected

    found = collected([folder])
    rows = [row_of(path, card) for path, card in found.cards.items()]
    kept = [row for row in rows if all(_fits(row[name], value) for name, value in wanted.items())]
    return kept, list(found.damaged.values()), len(found.others)


def _fits(value: Any, wanted: str | None) -> bool:
    return wanted is None or str(value).lower() == wanted.lower()


def _leave(damaged: list[str]) -> None:
    """Name every damaged card and end with 1, if there are any."""
    for problem in damaged:
        complain(problem)
    if damaged:
        raise typer.Exit(1)
