"""cfsl tasks: draw tasks as pictures, write them to manifests, and check manifests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cfsl.cli.console import counting, print_json, say
from cfsl.cli.task_options import TaskOptions, takes_task_options
from cfsl.errors import CfslError

if TYPE_CHECKING:
    from PIL.Image import Image

app = typer.Typer(
    no_args_is_help=True,
    help="Look at tasks, write them down, check them.",
    epilog="Examples:\n\ncfsl tasks show --type D --nss 4 --cci 2 --out task.png\n\n"
    "cfsl tasks export --type B --nss 3 --out b3.json.gz\n\ncfsl tasks verify b3.json.gz",
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


@app.command(
    epilog="Example: cfsl tasks show --data omniglot --type D --nss 4 --cci 2 --out task.png"
)
@takes_task_options
def show(
    options: TaskOptions,
    index: Annotated[int, typer.Option(help="Number of the task.")] = 0,
    out: Annotated[
        Path, typer.Option(help="Where to write the picture (.png, .pdf, .jpg).")
    ] = Path("task.png"),
    json: Json = False,
) -> None:
    """Draw one task: support sets in order, then the target set."""
    from cfsl.report.draw_task import describe_spec, draw_task

    tasks = options.tasks(range(index, index + 1))
    released = f" ({options.sampler})" if options.sampler != "cfsl-1" else ""
    picture = draw_task(tasks[0], title=f"{options.data}/{options.split}{released}")
    _save(picture, out)

    spec = tasks.spec
    if json:
        print_json(
            {
                "picture": str(out),
                "data": options.data,
                "split": options.split,
                "seed": options.seed,
                "sampler": options.sampler,
                "index": index,
                "spec": spec.model_dump(mode="json"),
                "spec_hash": spec.hash,
                "labels": spec.labels,
                "targets": spec.target_images,
            }
        )
        return

    say(f"{describe_spec(spec)}: {spec.labels} labels, {spec.target_images} targets")
    small = int((tasks.class_sizes < spec.images_per_class).sum())
    if small:
        say(
            f"{small} of {len(tasks.class_sizes)} classes of {options.data}/{options.split} have "
            f"fewer than {spec.images_per_class} images and are never drawn"
        )
    say(f"wrote {out}")


def _save(picture: Image, out: Path) -> None:
    """Write a picture, in the format that the name of the file says."""
    from PIL.Image import SAVE, registered_extensions

    from cfsl.files import written_whole

    form = registered_extensions().get(out.suffix.lower())
    if form not in SAVE:
        raise CfslError(f"{out} cannot be written: its name should end in .png, .jpg or .pdf")

    try:
        with written_whole(out) as part:
            picture.save(part, form, title=out.stem)
    except OSError as error:
        folder_exists = out.absolute().parent.is_dir()
        why = (error.strerror or error) if folder_exists else "its folder does not exist"
        raise CfslError(f"{out} cannot be written: {why}") from error


@app.command(epilog="Example: cfsl tasks export --data omniglot --type B --nss 3 --out b3.json.gz")
@takes_task_options
def export(
    options: TaskOptions,
    tasks: Annotated[int, typer.Option(help="How many tasks.", min=1)] = 600,
    first: Annotated[int, typer.Option(help="Number of the first task.", min=0)] = 0,
    out: Annotated[Path, typer.Option(help="Where to write the manifest.")] = Path("tasks.json.gz"),
    json: Json = False,
) -> None:
    """Write tasks to one small file, by class and image names and with a fingerprint."""
    from cfsl.data.manifest import Manifest

    manifest = Manifest.of(options.tasks(range(first, first + tasks)))
    manifest.write(out)

    size = out.stat().st_size
    if json:
        print_json(
            {"path": str(out), "fingerprint": manifest.fingerprint, "tasks": tasks, "bytes": size}
        )
    else:
        say(f"wrote {tasks} tasks to {out} ({size / 1000:,.0f} kB)")
        say(f"fingerprint {manifest.fingerprint}")


@app.command(
    epilog="Examples:\n\ncfsl tasks verify b3.json.gz\n\ncfsl tasks verify --published omniglot",
)
def verify(
    manifests: Annotated[
        list[Path] | None,
        typer.Argument(help="Manifest files, as 'cfsl tasks export' writes them."),
    ] = None,
    published: Annotated[
        str | None, typer.Option(help="Check the published test tasks of this data set instead.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Data set to draw from; default: the manifest's own.")
    ] = None,
    splits: Annotated[
        str | None,
        typer.Option(
            help="Split file, if the manifest's own is not the data set's: a name, or a path."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Draw the tasks of manifests again and compare; the exit code is 1 if one differs."""
    if not manifests and not published:
        raise CfslError("nothing to verify: give manifest files, or --published omniglot")
    if published and splits:
        raise CfslError(
            "the published tasks are of the reference split; --splits is for manifest files"
        )

    results = _verify_published(published, data or published) if published else {}
    for path in manifests or []:
        results[str(path)] = _verify_file(path, data, splits)

    if json:
        print_json({name: problem or "ok" for name, problem in results.items()})
    else:
        for name, problem in results.items():
            say(f"{name}: {problem or 'ok'}")

    if any(results.values()):
        raise typer.Exit(1)


def _verify_file(path: Path, data: str | None, splits: str | None) -> str:
    """Return what is wrong with a manifest, or an empty text."""
    from cfsl.data.manifest import Manifest, differences

    manifest = Manifest.read(path)
    options = TaskOptions(data=data or manifest.data, splits=splits or manifest.splits)
    drawn = manifest.recomputed(options.open())

    if drawn.fingerprint == manifest.fingerprint:
        return ""
    return "; ".join(differences(manifest, drawn)) or "fingerprints differ"


def _verify_published(name: str, data: str) -> dict[str, str]:
    """Compare the published fingerprints of a data set's test tasks with what is drawn here."""
    from cfsl.data.published import drawn_fingerprint, published_tasks

    table, data_set = published_tasks(name), TaskOptions(data=data).open()

    results = {}
    with counting(f"drawing tasks from {data}", len(table), "settings") as progress:
        for column, entry in table.items():
            stated, drawn = entry.fingerprint, drawn_fingerprint(data_set, entry)
            same = drawn == stated
            problem = f"published {stated[:12]}, drawn here {drawn[:12]}"
            results[f"{name} {column}"] = "" if same else problem
            progress(1)
    return results
