"""cfsl verify and compare: check the numbers of cards, and compare two learners."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cfsl.cli.console import counting, print_json, say
from cfsl.errors import CfslError

if TYPE_CHECKING:
    from cfsl.cards.compare import Compared
    from cfsl.cards.verify import Verdict

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
ManifestFolder = Annotated[
    Path | None,
    typer.Option(
        "--manifests",
        help="Folder of task manifests; default: 'manifests' beside a card, or one up.",
    ),
]


def verify(
    cards: Annotated[list[Path], typer.Argument(help="Result cards, or folders of them.")],
    manifests: ManifestFolder = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Exit with 1 unless every card could be checked in full."),
    ] = False,
    json: Json = False,
) -> None:
    """Work out every number of result cards again from their answers.

    The exit code is 1 if one is not true.
    """
    from cfsl.cards.collect import collected
    from cfsl.cards.manifests import Manifests
    from cfsl.cards.verify import verify_card

    found, tasks = collected(cards), Manifests(manifests)
    paths = sorted([*found.cards, *found.damaged])
    if not paths:
        raise CfslError(f"there are no result cards in {', '.join(str(place) for place in cards)}")

    verdicts: dict[Path, Verdict] = {}
    with counting("verifying", len(paths), "cards") as progress:
        for path in paths:
            verdicts[path] = verify_card(path, tasks)
            progress(1)

    if json:
        print_json({str(path): asdict(verdict) for path, verdict in verdicts.items()})
    else:
        for path, verdict in verdicts.items():
            say(f"{path}: {verdict}")
        say(_summary([verdict.status for verdict in verdicts.values()], len(found.others)))

    failing = {"refused", "in part", "unchecked"} if strict else {"refused"}
    if any(verdict.status in failing for verdict in verdicts.values()):
        raise typer.Exit(1)


def _summary(statuses: list[str], others: int) -> str:
    """Count the cards of every status that occurs."""
    counts = {
        status: statuses.count(status) for status in ("ok", "in part", "unchecked", "refused")
    }
    parts = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    return f"{counted(len(statuses), 'card')}: {parts}{skipped(others)}"


def counted(number: int, name: str) -> str:
    """Say how many there are of something."""
    return f"{number} {name}{'' if number == 1 else 's'}"


def skipped(others: int) -> str:
    """End a sentence with the number of files that are no results."""
    return f"; {counted(others, 'file')} of other kinds skipped" if others else ""


def compare(
    a: Annotated[Path, typer.Argument(help="A result card.")],
    b: Annotated[Path, typer.Argument(help="Another, of the same tasks.")],
    manifests: ManifestFolder = None,
    json: Json = False,
) -> None:
    """Compare two learners on the same tasks, by a paired test on their answers."""
    from cfsl.cards.card_rows import percent
    from cfsl.cards.compare import compare_cards
    from cfsl.cards.manifests import Manifests

    compared = compare_cards(a, b, Manifests(manifests))
    if json:
        print_json(_as_json(compared, (a, b)))
        return

    tasks = compared.cards[0].tasks
    sets = f"{tasks.task_spec.nss} support sets"
    say(f"{tasks.data}/{tasks.split}, type {tasks.task_type}, {sets}")
    for letter, path, card, accuracy in zip(
        "AB", (a, b), compared.cards, compared.accuracies, strict=True
    ):
        shown = percent(accuracy.mean, accuracy.ci95)
        say(f"  {letter}  {card.learner.name}, {path}")
        say(f"     accuracy {shown} %, ATM {card.metrics.atm.total:.4f}")
        say(f"     MACs {card.macs.adaptation:,} to learn, {card.macs.prediction:,} to answer")

    if compared.ensembles:
        say("  (the ensembles of both; ATM and MACs are those of one member)")
    paired = compared.paired
    apart = percent(paired.difference, paired.ci95, "+")
    say(f"  A - B {apart} points (95 % over tasks), p = {paired.p:.2g}")
    say(compared.sentence)


def _as_json(compared: Compared, paths: tuple[Path, Path]) -> dict[str, object]:
    sides = {
        letter: {
            "file": str(path),
            "learner": card.learner.name,
            "accuracy": asdict(accuracy),
            "atm": card.metrics.atm.total,
            "macs": card.macs.content(),
        }
        for letter, path, card, accuracy in zip(
            "ab", paths, compared.cards, compared.accuracies, strict=True
        )
    }

    return {
        **sides,
        **asdict(compared.paired),
        "ensembles": compared.ensembles,
        "sentence": compared.sentence,
    }
