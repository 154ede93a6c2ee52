"""Leaderboards as text for elsewhere: Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from cfsl.report.leaderboard import Leaderboard, LeaderboardCell, LeaderboardRow, places
from cfsl.report.tables import LEGEND, TOGETHER, text_table, together_mark

_MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\`*_{}[]<>|#"})
_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "±": r"$\pm$"}
)
_STATUS = {"sound": "", "superseded": " (s)", "trend": " (t)"}
_LATEX_STATUS = {"sound": "", "superseded": r"^{\dagger}", "trend": r"^{\ddagger}"}
_CSV = (
    *("suite", "data", "splits", "profile", "learner", "column"),
    *("accuracy", "ci95", "seeds", "seed_std", "members", "published", "status", "cards"),
)
_NARROW = 6
"""Columns that fit one column of a paper."""
BOLD = (
    "Bold: the best of a column, and what a paired t test on the same tasks cannot tell from it "
    "(p at least 0.05)."
)
UNTESTED = "Without the predictions of both there is no test, and no tie is claimed: so in"


def text_form(boards: Sequence[Leaderboard], out: Path | None, width: int = 120) -> str:
    """Lay boards out for a terminal."""
    parts = []
    for board in boards:
        title = f"{board.title}, profile {board.profile}: {board.what}"
        lines = [*text_table(title, list(board.columns), board.entries, width)]

        legend = [
            *(LEGEND if board.has_published else []),
            *([TOGETHER] if board.has_ensembles else []),
        ]
        legend += [board.repeats_words] if board.repeats else []
        parts.append("\n".join([*lines, *(["", *legend] if legend else [])]))
    return "\n\n".join(parts) + "\n"


def csv_form(boards: Sequence[Leaderboard], out: Path | None) -> str:
    """Write a line a cell; fractions, not percent."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV)

    for board, row, column, cell in places(boards):
        entry, theirs = cell.entry, cell.entry.published
        place = (board.suite, board.data, board.splits, board.profile, row.label, column)
        ours = (entry.mean, entry.ci95, entry.seeds, entry.seed_std, entry.members)
        published = (theirs.accuracy, theirs.status) if theirs else (None, None)
        writer.writerow((*place, *ours, *published, " ".join(found.path for found in cell.cards)))
    return text.getvalue()


def markdown_form(boards: Sequence[Leaderboard], out: Path | None) -> str:
    """Write a table a board; numbers lead to their cards, relative to the folder of `out`."""
    return "\n".join("\n".join(_markdown(board, out)) for board in boards)


def _markdown(board: Leaderboard, out: Path | None) -> Iterator[str]:
    yield f"## {_md(board.title)}, profile {_md(board.profile)}"
    yield ""
    yield f"{_md(board.what)}. Split file: {_md(board.splits)}. Accuracy in %, ± 95 % over tasks."
    yield ""

    yield "| learner | " + " | ".join(_md(column) for column in board.columns) + " |"
    yield "|---|" + "--:|" * len(board.columns)

    for row in board.rows:
        yield f"| {_md(row.label)}{_marks(row)} | " + " | ".join(_md_cells(board, row, out)) + " |"
        if any(cell.entry.published for cell in row.cells.values()):
            yield "| *published* | " + " | ".join(_md_published(board, row)) + " |"
    yield ""
    yield from _notes(board)
    yield ""


def _notes(board: Leaderboard) -> Iterator[str]:
    """Say how to read a board."""
    yield BOLD
    if board.untested:
        yield f"{UNTESTED} {board.untested_words}."

    if any(row.breaks_law for row in board.rows):
        yield "\\* breaks the data-flow law on purpose: an upper bound, not ranked."
    if any(row.transductive for row in board.rows):
        yield "\\~ transductive: looks at all targets together."

    if board.has_ensembles:
        yield TOGETHER
    if board.repeats:
        yield board.repeats_words
    if board.has_published:
        yield LEGEND[1].replace("(s)", "Published numbers: (s)")


def _marks(row: LeaderboardRow) -> str:
    return (" \\*" if row.breaks_law else "") + (" \\~" if row.transductive else "")


def _md_cells(board: Leaderboard, row: LeaderboardRow, out: Path | None) -> Iterator[str]:
    for column in board.columns:
        cell = row.cells.get(column)
        if cell is None or cell.entry.mean is None:
            yield ""
            continue
        number = f"{100 * cell.entry.mean:.2f}"
        shown = f"**{number}**" if cell.mark else number
        link = _link(cell.cards[0].path, out)
        width = f" ± {100 * cell.entry.ci95:.2f}" if cell.entry.ci95 is not None else ""
        yield f"[{shown}]({link}){width}{together_mark(cell.entry)}"


def _md_published(board: Leaderboard, row: LeaderboardRow) -> Iterator[str]:
    for column in board.columns:
        theirs = row.cells[column].entry.published if column in row.cells else None
        yield f"*{100 * theirs.accuracy:.2f}{_STATUS[theirs.status]}*" if theirs else ""


def _link(path: str, out: Path | None) -> str:
    """Return the path from the written file to a card, with escapes that Markdown needs."""
    shown = os.path.relpath(path, out.parent) if out is not None else path
    return Path(shown).as_posix().replace(" ", "%20").replace("(", "%28").replace(")", "%29")


def _md(text: str) -> str:
    return text.replace("\n", " ").translate(_MARKDOWN)


def latex_form(boards: Sequence[Leaderboard], out: Path | None) -> str:
    """Write a table environment a board, for booktabs."""
    head = "% needs \\usepackage{booktabs}; made by 'cfsl table'\n"
    return head + "\n".join("\n".join(_latex(board)) for board in boards)


def _latex(board: Leaderboard) -> Iterator[str]:
    is_wide = len(board.columns) > _NARROW
    environment = "table*" if is_wide else "table"
    yield rf"\begin{{{environment}}}[t]"
    yield r"\centering\scriptsize\setlength{\tabcolsep}{3pt}" if is_wide else r"\centering\small"
    yield rf"\caption{{{_caption(board)}}}"
    yield rf"\label{{tab:{board.suite}-{_plain(board.data)}-{_plain(board.profile)}}}"

    yield rf"\begin{{tabular}}{{l{'c' * len(board.columns)}}}"
    yield r"\toprule"
    yield " & ".join(["Learner", *(_tex(column) for column in board.columns)]) + r" \\"
    yield r"\midrule"

    for row in board.rows:
        mark = (r"$^{*}$" if row.breaks_law else "") + (r"$^{\sim}$" if row.transductive else "")
        cells = [_tex_cell(row.cells.get(column)) for column in board.columns]
        yield " & ".join([_tex(row.label) + mark, *cells]) + r" \\"
        theirs = [_tex_published(row.cells.get(column)) for column in board.columns]
        if any(theirs):
            yield " & ".join([r"\quad published", *theirs]) + r" \\"

    yield r"\bottomrule"
    yield r"\end{tabular}"
    yield rf"\end{{{environment}}}"
    yield ""


def _caption(board: Leaderboard) -> str:
    parts = [
        f"{_tex(board.title)}, profile {_tex(board.profile)}: {_tex(board.what)}.",
        r"Accuracy in \%, $\pm$ 95\,\% over tasks.",
        _tex(BOLD),
    ]

    if board.untested:
        parts.append(f"{UNTESTED} {_tex(board.untested_words)}.")
    if any(row.breaks_law for row in board.rows):
        parts.append(r"$^{*}$ An upper bound that breaks the data-flow law, not ranked.")
    if any(row.transductive for row in board.rows):
        parts.append(r"$^{\sim}$ Transductive.")

    if board.has_ensembles:
        parts.append(TOGETHER)
    if board.repeats:
        parts.append(board.repeats_words)
    if board.has_published:
        parts.append(r"Published: $^{\dagger}$ superseded, $^{\ddagger}$ trend only.")

    return " ".join(parts)


def _tex_cell(cell: LeaderboardCell | None) -> str:
    if cell is None or cell.entry.mean is None:
        return "--"
    width = f" \\pm {100 * cell.entry.ci95:.2f}" if cell.entry.ci95 is not None else ""
    number = f"{100 * cell.entry.mean:.2f}{width}"
    return (f"$\\mathbf{{{number}}}$" if cell.mark else f"${number}$") + together_mark(cell.entry)


def _tex_published(cell: LeaderboardCell | None) -> str:
    theirs = cell.entry.published if cell else None
    return f"${100 * theirs.accuracy:.2f}{_LATEX_STATUS[theirs.status]}$" if theirs else ""


def _tex(text: str) -> str:
    return text.replace("\n", " ").translate(_LATEX)


def _plain(text: str) -> str:
    return "".join(character if character.isalnum() else "-" for character in text)


FORMS: Mapping[str, Callable[[Sequence[Leaderboard], Path | None], str]] = {
    "text": text_form,
    "markdown": markdown_form,
    "latex": latex_form,
    "csv": csv_form,
}


def leaderboard_page(boards: Sequence[Leaderboard], out: Path | None, command: str) -> str:
    """Return docs/leaderboard.md: all boards, and how the page was made."""
    head = [
        "# Leaderboard",
        "",
        f"Made by `{command}`; do not edit. Numbers lead to their cards, which",
        "[results.md](results.md) explains. Profiles are never ranked against each other.",
        "",
        "",
    ]
    return "\n".join(head) + markdown_form(boards, out)


def paths_of(boards: Iterable[Leaderboard]) -> set[str]:
    """Return the cards that have a place."""
    return {found.path for _, _, _, cell in places(boards) for found in cell.cards}
