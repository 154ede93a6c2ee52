"""What `make demo` runs: example tasks of every type, from the embedded data set, as pictures."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import Progress

import cfsl
from cfsl.data.catalog import glyphs_counts
from cfsl.report.draw_task import describe_spec
from cfsl.spec import Noise, Occlusion, TaskSpec

FOLDER = Path("demo")
SPECS = {
    "type-a": TaskSpec.type_a(nss=3),
    "type-b": TaskSpec.type_b(nss=3),
    "type-c": TaskSpec.type_c(nss=3),
    "type-d": TaskSpec.type_d(nss=4, cci=2),
    "instance-clean": TaskSpec.instance(nss=4, k_shot=5),
    "instance-noise": TaskSpec.instance(nss=4, k_shot=5, corruption=Noise(fraction=0.2)),
    "instance-occluded": TaskSpec.instance(nss=4, k_shot=5, corruption=Occlusion(fraction=0.3)),
}


def main() -> None:
    """Draw the data set if it is not there yet, then one task of each kind."""
    console = Console()
    FOLDER.mkdir(exist_ok=True)
    classes, samples = glyphs_counts("glyphs")
    with Progress(console=console, transient=True) as bar:
        drawing = bar.add_task("drawing the glyphs data set", total=classes * samples)
        data = cfsl.load("glyphs", progress=lambda finished: bar.advance(drawing, finished))
        bar.update(drawing, completed=classes * samples)
        pictures = bar.add_task("drawing example tasks", total=len(SPECS))
        for name, spec in SPECS.items():
            task = cfsl.Tasks(data, spec, split="test")[17]
            cfsl.draw_task(task, title="glyphs/test").save(FOLDER / f"{name}.png")
            bar.advance(pictures)
    console.print(f"data: {len(data.pixels):,} drawings of {len(data.class_sizes):,} characters in {data.folder}")
    for name, spec in SPECS.items():
        console.print(f"  {FOLDER / name}.png  {describe_spec(spec)}", highlight=False, soft_wrap=True)
    console.print(f"{len(SPECS)} pictures are in {FOLDER.resolve()}", soft_wrap=True)


if __name__ == "__main__":
    main()
