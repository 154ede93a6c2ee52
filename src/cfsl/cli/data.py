"""cfsl data: list, fetch, add and check data sets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cfsl.cli.console import counting, fetching, print_json, say
from cfsl.errors import CfslError, DataError

if TYPE_CHECKING:
    from cfsl.data.store import Dataset

app = typer.Typer(
    no_args_is_help=True,
    help="List, fetch, add and check data sets.",
    epilog="Examples:\n\ncfsl data list\n\ncfsl data fetch omniglot\n\n"
    "cfsl data add mydata --from photos/ --size 64",
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Name = Annotated[str, typer.Argument(help="Name of the data set.")]


@app.command("list", epilog="Example: cfsl data list")
def list_(json: Json = False) -> None:
    """Show the data sets that are here, and those that can be had."""
    from cfsl.data.catalog import CATALOG
    from cfsl.data.store import data_root, installed

    here = {name: _state(name) for name in installed()}
    if json:
        known = {
            name: {"here": False, "what": e.title, "how": e.how, "damaged": None}
            for name, e in CATALOG.items()
        }
        print_json({"root": str(data_root()), "data": known | here})
        return

    if here:
        say(f"here, in {data_root()} (set CFSL_DATA to change):")
    else:
        say(f"nothing is here yet, in {data_root()}")
    for name, state in here.items():
        damage = f"DAMAGED: {state['damaged']}" if state["damaged"] else ""
        _say_entry(name, damage or state["what"])

    say("to be had:")
    for name, entry in CATALOG.items():
        if name not in here:
            _say_entry(name, entry.title)
            _say_entry("", entry.how)
    _say_entry("glyphs-2000x50", "glyphs of any other size (classes x samples), drawn on first use")
    _say_entry("your own images", "cfsl data add NAME --from FOLDER")


def _say_entry(name: str, text: str) -> None:
    say(f"  {name:<16}  {text}")


def _state(name: str) -> dict[str, Any]:
    """Describe an installed data set; one that is damaged is said to be, and hides no other."""
    from cfsl.data.catalog import CATALOG
    from cfsl.data.store import open_dataset

    how = CATALOG[name].how if name in CATALOG else None
    try:
        info = open_dataset(name).info
    except (CfslError, OSError, ValueError) as error:
        return {"here": True, "what": None, "how": how, "damaged": str(error)}

    title = "" if info.title == name else f"{info.title}: "
    counts = f"{len(info.class_names):,} classes, {sum(info.class_sizes):,} images"
    kind = "greyscale" if info.recipe.channels == 1 else "RGB"
    what = f"{title}{counts}, {info.recipe.height} x {info.recipe.width} {kind}"
    return {"here": True, "what": what, "how": how or info.source, "damaged": None}


@app.command(epilog="Example: cfsl data fetch omniglot")
def fetch(
    name: Name,
    recipe: Annotated[
        str | None,
        typer.Option(help="Another way to prepare the images, such as omniglot's 'antialiased'."),
    ] = None,
    json: Json = False,
) -> None:
    """Download a data set (or draw glyphs) and pack it."""
    from cfsl.data.catalog import fetch_dataset

    with fetching(name) as (received, progress):
        data = fetch_dataset(name, recipe=recipe, download_progress=received, progress=progress)
    _report(data, json=json)


@app.command(
    epilog="Examples:\n\ncfsl data add omniglot --from ~/Downloads\n\n"
    "cfsl data add mydata --from photos/ --size 64"
)
def add(
    name: Name,
    source: Annotated[
        Path,
        typer.Option(
            "--from", help="A folder or archive with one folder a class, or an .npz file."
        ),
    ],
    save_as: Annotated[str | None, typer.Option("--as", help="Save it under another name.")] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="Recipe of a known data set, such as omniglot's 'antialiased'."),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(help="Height and width in pixels (your own images: 64).", min=1, max=4096),
    ] = None,
    channels: Annotated[
        int | None, typer.Option(help="1 (grey) or 3 (colour, the default), of your own images.")
    ] = None,
    fit: Annotated[
        str,
        typer.Option(help="How your own images become squares: 'crop' the middle, or 'stretch'."),
    ] = "crop",
    splits: Annotated[
        Path | None,
        typer.Option(
            help='Your own split: a .json file like {"train": ["class", ...], "val": ..., '
            '"test": ...}.'
        ),
    ] = None,
    licence: Annotated[str, typer.Option(help="Licence of your own images.")] = "unknown",
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Replace a data set of that name that is already here."),
    ] = False,
    json: Json = False,
) -> None:
    """Pack your images: a known data set, a folder or archive of class folders, or an .npz file."""
    from cfsl.data.catalog import AddRequest, add_dataset

    with counting(f"packing {name}") as progress:
        data = add_dataset(
            AddRequest(
                name=name,
                source=source,
                save_as=save_as,
                recipe=recipe,
                size=size,
                channels=channels,
                fit=fit,
                splits=splits,
                licence=licence,
                replace=replace,
                progress=progress,
            )
        )
    _report(data, json=json)


@app.command(epilog="Example: cfsl data info omniglot")
def info(
    name: Name,
    splits: Annotated[
        str | None,
        typer.Option(help="Split to look at: one that is listed, or the path of a .json file."),
    ] = None,
    json: Json = False,
) -> None:
    """Say what a data set holds, and the longest task of each type that it can give."""
    from cfsl.cli.task_options import TaskOptions

    _report(TaskOptions(data=name, splits=splits).open(), json=json)


@app.command(epilog="Example: cfsl data verify omniglot")
def verify(name: Name, json: Json = False) -> None:
    """Read every pixel again and compare with the fingerprint, and with a published one."""
    from cfsl.data.catalog import REFERENCE_FINGERPRINTS
    from cfsl.data.store import hash_pixels, open_dataset

    data = open_dataset(name)
    with counting(f"reading {name}", data.pixels.nbytes, "bytes") as progress:
        digest = hash_pixels(data.folder, progress)
    if digest != data.info.pixels_sha256:
        raise DataError(
            f"{name} is damaged: its pixels hash to {digest[:12]}, not "
            f"{data.info.pixels_sha256[:12]}; add it again"
        )

    if len(data.image_names) != len(data.pixels):
        raise DataError(
            f"{name} is damaged: {len(data.image_names)} names for {len(data.pixels)} images; add "
            f"it again"
        )

    reference = REFERENCE_FINGERPRINTS.get(name)
    matches = None if reference is None else reference == data.fingerprint
    if json:
        print_json(
            {
                "name": name,
                "fingerprint": data.fingerprint,
                "intact": True,
                "matches_reference": matches,
            }
        )
        return

    say(f"{name} is intact: {len(data.pixels):,} images, fingerprint {data.fingerprint}")
    if matches is not None:
        same = "the same as" if matches else "NOT the same as"
        say(f"pixels, classes and recipe are {same} those that the published tasks were drawn from")
    if matches is False:
        raise typer.Exit(1)


def _report(data: Dataset, *, json: bool) -> None:
    """Print the figures of Table 2 of paper 1 about a data set, and more."""
    from cfsl.data.summary import summarise

    summary = summarise(data)
    if json:
        print_json(summary)
        return

    for key in ("name", "title", "source", "licence", "classes", "images", "images_per_class"):
        _say_field(key, summary[key])
    _say_field("resolution", summary["resolution"])
    _say_field("format", summary["format"])
    if summary["citation"]:
        _say_field("citation", " ".join(summary["citation"].split()))

    size = f"{summary['size_on_disk']} ({summary['size_as_float32']} as float32)"
    _say_field("size_on_disk", size)
    _say_field("folder", summary["folder"])
    _say_field("fingerprint", summary["fingerprint"])
    recipe: dict[str, Any] = summary["recipe"]
    _say_field("recipe", ", ".join(f"{key} {value}" for key, value in recipe.items() if value))

    parts: dict[str, int] = summary["parts"]
    counts = ", ".join(f"{part} {count:,}" for part, count in parts.items())
    _say_field("split", f"{summary['splits']}: {counts}")
    others = [name for name in summary["split_files"].split(", ") if name != summary["splits"]]
    if others:
        _say_field("other_splits", f"{', '.join(others)} (choose with --splits)")

    _say_longest(summary["longest"])


def _say_field(key: str, value: str | int) -> None:
    text = f"{value:,}" if isinstance(value, int) else value
    say(f"{key.replace('_', ' ') + ':':<18}{text}")


def _say_longest(longest: dict[str, dict[str, int]]) -> None:
    """Print the longest tasks as a table: a row for each part of the split."""
    kinds = list(next(iter(longest.values())))
    say(
        "longest tasks, in support sets (types A to D: 5-way 1-shot, 5 targets a class; instance: "
        "1 image a set):"
    )
    say(f"{'':<18}" + "".join(f"{kind:>12}" for kind in kinds))

    for part, row in longest.items():
        cells = [f"{row[kind]:,}" if row[kind] else "-" for kind in kinds]
        say(f"  {part:<16}" + "".join(f"{cell:>12}" for cell in cells))
