"""cfsl tasks: look at tasks, write them down, check them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cfsl.cli.console import counting, print_json, say
from cfsl.cli.setting import Setting, takes_setting
from cfsl.errors import CfslError

app = typer.Typer(no_args_is_help=True, help="Look at tasks, write them down, check them.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


@app.command(epilog="Example: cfsl tasks show --data omniglot --type D --nss 4 --cci 2 --out task.png")
@takes_setting
def show(
    setting: Setting,
    index: Annotated[int, typer.Option(help="Number of the task.")] = 0,
    out: Annotated[Path, typer.Option(help="Where to write the picture (.png, .pdf, .jpg).")] = Path("task.png"),
    json: Json = False,
) -> None:
    """Draw one task: support sets in order, then the target set."""
    from cfsl.report.draw_task import describe_spec, draw_task

    if index < 0:
        raise CfslError(f"tasks are numbered from 0 on; --index {index} is not a task")
    tasks = setting.tasks(range(index, index + 1))
    released = f" ({setting.sampler})" if setting.sampler != "cfsl-1" else ""
    picture = draw_task(tasks[0], title=f"{setting.data}/{setting.split}{released}")
    try:
        picture.save(out)
    except (OSError, ValueError) as error:
        raise CfslError(f"{out} cannot be written: {error}") from error
    spec = tasks.spec
    if json:
        print_json(
            {
                "picture": str(out),
                "spec": spec.model_dump(mode="json"),
                "spec_hash": spec.hash,
                "labels": spec.labels,
            }
        )
    else:
        say(f"{describe_spec(spec)}: {spec.labels} labels, {spec.target_images} targets")
        _say_of_small_classes(tasks.class_sizes.tolist(), spec.images_per_class, f"{setting.data}/{setting.split}")
        say(f"wrote {out}")


def _say_of_small_classes(sizes: list[int], needed: int, where: str) -> None:
    small = sum(size < needed for size in sizes)
    if small:
        say(f"{small} of {len(sizes)} classes of {where} have fewer than {needed} images and are never drawn")


@app.command(epilog="Example: cfsl tasks export --data omniglot --type B --nss 3 --out b3.json.gz")
@takes_setting
def export(
    setting: Setting,
    tasks: Annotated[int, typer.Option(help="How many tasks.", min=1)] = 600,
    first: Annotated[int, typer.Option(help="Number of the first task.", min=0)] = 0,
    out: Annotated[Path, typer.Option(help="Where to write the manifest.")] = Path("tasks.json.gz"),
    json: Json = False,
) -> None:
    """Write tasks down by class and image names, as one small file with a fingerprint."""
    from cfsl.data.manifest import Manifest

    manifest = Manifest.of(setting.tasks(range(first, first + tasks)))
    manifest.write(out)
    size = out.stat().st_size
    if json:
        print_json({"path": str(out), "fingerprint": manifest.fingerprint, "tasks": tasks, "bytes": size})
    else:
        say(f"wrote {tasks} tasks to {out} ({size / 1000:,.0f} kB)")
        say(f"fingerprint {manifest.fingerprint}")


@app.command(
    epilog="Examples: cfsl tasks verify b3.json.gz        cfsl tasks verify --published omniglot",
)
def verify(
    manifests: Annotated[list[Path] | None, typer.Argument(help="Manifest files.")] = None,
    published: Annotated[
        str | None, typer.Option(help="Check the published test tasks of this data set instead.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Data set to draw from; default: the manifest's own.")] = None,
    json: Json = False,
) -> None:
    """Draw the tasks of manifests again and compare."""
    if not manifests and not published:
        raise CfslError("nothing to verify: give manifest files, or --published omniglot")
    results = _verify_published(published, data) if published else {}
    for path in manifests or []:
        results[str(path)] = _verify_file(path, data)
    if json:
        print_json(results)
    else:
        for name, problem in results.items():
            say(f"{name}: {problem or 'ok'}")
    if any(results.values()):
        raise typer.Exit(1)


def _verify_file(path: Path, data: str | None) -> str:
    """Return what is wrong with a manifest, or an empty text."""
    from cfsl.data.catalog import load
    from cfsl.data.manifest import Manifest, differences

    manifest = Manifest.read(path)
    splits = None if data else manifest.splits
    drawn = manifest.recomputed(load(data or manifest.data, splits=splits))
    if drawn.fingerprint == manifest.fingerprint:
        return ""
    return "; ".join(differences(manifest, drawn)) or "fingerprints differ"


def _verify_published(name: str, data: str | None) -> dict[str, str]:
    """Compare the published fingerprints of a data set's test tasks with what is drawn here."""
    from cfsl.data.catalog import load
    from cfsl.data.published import drawn_fingerprint, published_tasks

    table = published_tasks(name)
    data_set = load(data or name)
    results = {}
    with counting("drawing", len(table)) as progress:
        for column, entry in table.items():
            drawn = drawn_fingerprint(data_set, entry)
            stated = entry.fingerprint
            results[f"{name} {column}"] = "" if drawn == stated else f"published {stated[:12]}, drawn here {drawn[:12]}"
            progress(1)
    return results
