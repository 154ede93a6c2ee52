"""Tables of results: learners by columns, ours beside what was published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cfsl.cards.card_rows import percent
from cfsl.cards.published import PublishedCell
from cfsl.cards.schema import Card, CardSummary
from cfsl.metrics.accuracy import over_seeds


@dataclass(frozen=True)
class Entry:
    """The accuracy of one learner in one column, and the published one."""

    mean: float | None
    """Over seeds if there are several; None if there is no card."""
    ci95: float | None = None
    """Half the width of the 95 % interval over tasks; with several seeds, the mean of theirs."""
    seeds: int = 1
    seed_std: float | None = None
    members: int = 1
    """How many epochs of a run answer together."""
    published: PublishedCell | None = None
    why_not: str = ""
    """Why there can be no card."""

    @property
    def difference(self) -> float | None:
        """Ours minus the published."""
        if self.mean is None or self.published is None:
            return None
        return self.mean - self.published.accuracy

    @property
    def is_inside(self) -> bool:
        """Whether the published number is inside our interval."""
        if self.difference is None or self.ci95 is None:
            return False
        return abs(self.difference) <= self.ci95


def entry_of(cards: Sequence[Card], published: PublishedCell | None, why_not: str = "") -> Entry:
    """Sum up the cards of one learner in one column, one card for each training seed."""
    if not cards:
        return Entry(None, published=published, why_not=why_not)

    accuracies = [card.headline.accuracy for card in cards]
    summary = over_seeds([accuracy.mean for accuracy in accuracies])
    widths = [accuracy.ci95 for accuracy in accuracies if accuracy.ci95 is not None]
    ci95 = sum(widths) / len(widths) if widths else None
    members = max(1 if card.ensemble is None else card.ensemble.members for card in cards)
    return Entry(summary.mean, ci95, summary.count, summary.std, members, published)


def plus_minus(accuracy: CardSummary | Entry) -> str:
    """Write a mean in percent, with its interval if it has one."""
    return percent(accuracy.mean, accuracy.ci95).replace("+-", "±") + " %"


def text_table(
    title: str, columns: Sequence[str], rows: Mapping[str, Mapping[str, Entry]], width: int
) -> Iterator[str]:
    """Lay a table out in lines no wider than `width`, in several blocks if need be."""
    yield title

    first = max(len(name) for name in [*rows, "  published"]) + 2
    cell = max(14, max(len(column) for column in columns) + 2)
    at_once = max(1, (width - first) // cell)

    for start in range(0, len(columns), at_once):
        part = columns[start : start + at_once]
        yield ""
        yield (" " * first + "".join(column.ljust(cell) for column in part)).rstrip()
        for name, entries in rows.items():
            for label, texts in _lines(name, [entries.get(column) for column in part]):
                yield (label.ljust(first) + "".join(text.ljust(cell) for text in texts)).rstrip()


def _lines(name: str, entries: Sequence[Entry | None]) -> Iterator[tuple[str, list[str]]]:
    yield name, [_ours(entry) for entry in entries]
    if any(entry is not None and entry.published is not None for entry in entries):
        yield "  published", [_theirs(entry) for entry in entries]
        yield "  difference", [_difference(entry) for entry in entries]


def _ours(entry: Entry | None) -> str:
    if entry is None:
        return ""
    if entry.mean is None:
        return "n/a" if entry.why_not else "-"
    width = f" +-{100 * entry.ci95:.2f}" if entry.ci95 is not None else ""
    return f"{100 * entry.mean:.2f}{width}{together_mark(entry)}"


def together_mark(entry: Entry) -> str:
    """Return the mark of a number that several epochs of a run have together: how many they are."""
    return f" ({entry.members})" if entry.members > 1 else ""


_MARKS = {"sound": "", "superseded": " (s)", "trend": " (t)"}


def _theirs(entry: Entry | None) -> str:
    if entry is None or entry.published is None:
        return ""
    return f"{100 * entry.published.accuracy:.2f}{_MARKS[entry.published.status]}"


def _difference(entry: Entry | None) -> str:
    if entry is None or entry.difference is None:
        return ""
    return f"{100 * entry.difference:+.2f}" + (" inside" if entry.is_inside else "")


TOGETHER = "(n): n epochs of a run answer together."
LEGEND = (
    "Accuracy in %, +- half the 95 % interval over tasks. "
    "inside: the published number is in our interval.",
    "(s) superseded: the published number comes from a bug. (t) trend only. "
    "Why: 'cfsl results published'.",
)
