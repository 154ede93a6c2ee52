"""cfsl data: what data sets there are, and how to get them here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cfsl.cli.console import counting, downloading, out, print_json, say
from cfsl.errors import DataError

if TYPE_CHECKING:
    from cfsl.data.store import Dataset

app = typer.Typer(no_args_is_help=True, help="List, fetch, add and check data sets.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Name = Annotated[str, typer.Argument(help="Name of the data set.")]


@app.command("list", epilog="Example: cfsl data list")
def list_(json: Json = False) -> None:
    """Show the data sets that are here, and those that can be had."""
    from rich.table import Table

    from cfsl.data.catalog import CATALOG
    from cfsl.data.store import data_root, installed, open_dataset

    here = {name: open_dataset(name) for name in installed()}
    if json:
        known = {name: {"here": name in here, "how": entry.how} for name, entry in CATALOG.items()}
        own = {name: {"here": True, "how": data.info.source} for name, data in here.items()}
        print_json({"root": str(data_root()), "data": own | known})
        return
    table = Table("data set", "here", "what", "how to get it", box=None, pad_edge=False)
    for name, entry in CATALOG.items():
        table.add_row(name, "yes" if name in here else "", entry.title, "" if name in here else entry.how)
    for name, data in here.items():
        if name not in CATALOG:
            table.add_row(name, "yes", data.info.title, "")
    out.print(table)
    say(
        f"\ndata sets live in {data_root()} (set CFSL_DATA to change); 'cfsl data add NAME --from FOLDER' adds your own"
    )


@app.command(epilog="Example: cfsl data fetch omniglot")
def fetch(
    name: Name,
    recipe: Annotated[str | None, typer.Option(help="Preprocessing recipe.")] = None,
    json: Json = False,
) -> None:
    """Download a data set (or draw glyphs) and pack it."""
    from cfsl.data.catalog import fetch_dataset

    with downloading(f"fetching {name}") as received, counting(f"packing {name}", None) as progress:
        data = fetch_dataset(name, recipe=recipe, download_progress=received, progress=progress)
    _report(data, json=json)


@app.command(
    epilog="Examples: cfsl data add omniglot --from ~/Downloads        cfsl data add mydata --from photos/ --size 64"
)
def add(
    name: Name,
    source: Annotated[Path, typer.Option("--from", help="Folder, .zip, .tar(.gz, .bz2, .xz) or .npz.")],
    save_as: Annotated[str | None, typer.Option("--as", help="Save under another name.")] = None,
    recipe: Annotated[str | None, typer.Option(help="Recipe of a known data set, such as 'antialiased'.")] = None,
    size: Annotated[int | None, typer.Option(help="Height and width in pixels.", min=1, max=4096)] = None,
    channels: Annotated[int | None, typer.Option(help="1 (grey) or 3 (colour), for your own images.")] = None,
    fit: Annotated[str, typer.Option(help="crop the middle or stretch, for your own images.")] = "crop",
    splits: Annotated[Path | None, typer.Option(help="Your own split file (JSON).")] = None,
    licence: Annotated[str, typer.Option(help="Licence of your own images.")] = "unknown",
    replace: Annotated[bool, typer.Option("--replace", help="Replace a data set of that name.")] = False,
    json: Json = False,
) -> None:
    """Pack images that you have: a known data set, a folder or archive of class folders, or an .npz file."""
    from cfsl.data.catalog import AddRequest, add_dataset

    with counting(f"packing {name}", None) as progress:
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
    splits: Annotated[str | None, typer.Option(help="Split file: a name, or a path.")] = None,
    json: Json = False,
) -> None:
    """Say what a data set holds, and the longest task of each type that it can give."""
    from cfsl.cli.setting import Setting

    _report(Setting(data=name, splits=splits).open(), json=json)


@app.command(epilog="Example: cfsl data verify omniglot")
def verify(name: Name, json: Json = False) -> None:
    """Read every pixel again and compare with the fingerprint; for known data sets also with the published one."""
    from cfsl.data.catalog import REFERENCE_FINGERPRINTS
    from cfsl.data.store import hash_pixels, open_dataset

    data = open_dataset(name)
    with counting(f"reading {name}", data.pixels.nbytes) as progress:
        digest = hash_pixels(data.folder, progress)
    if digest != data.info.pixels_sha256:
        raise DataError(
            f"{name} is damaged: its pixels hash to {digest[:12]}, not {data.info.pixels_sha256[:12]}; add it again"
        )
    if len(data.image_names) != len(data.pixels):
        raise DataError(f"{name} is damaged: {len(data.image_names)} names for {len(data.pixels)} images; add it again")
    reference = REFERENCE_FINGERPRINTS.get(name)
    matches = None if reference is None else reference == data.fingerprint
    if json:
        print_json({"name": name, "fingerprint": data.fingerprint, "intact": True, "matches_reference": matches})
        return
    say(f"{name} is intact: {len(data.pixels):,} images, fingerprint {data.fingerprint}")
    if matches is not None:
        same = "the same as" if matches else "NOT the same as"
        say(f"pixels, classes and recipe are {same} those that the published tasks were drawn from")
    if matches is False:
        raise typer.Exit(1)


def _report(data: Dataset, *, json: bool) -> None:
    """Print what Table 2 of paper 1 asks about a data set, and more."""
    from cfsl.data.summary import summarise

    summary = summarise(data)
    if json:
        print_json(summary)
        return
    for key, value in summary.items():
        if key not in ("longest", "parts"):
            say(f"{key.replace('_', ' ') + ':':<18}{value}")
    parts: dict[str, Any] = summary["parts"]
    say("split:            " + ", ".join(f"{part} {count} classes" for part, count in parts.items()))
    say("longest tasks (support sets), 5-way 1-shot, 5 targets a class:")
    for part, longest in summary["longest"].items():
        say(f"  {part:<16}" + ", ".join(f"{kind} {nss or '-'}" for kind, nss in longest.items()))
