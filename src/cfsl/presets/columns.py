"""The columns of the papers' tables and figures: a name and a task spec each.

Antoniou et al. 2020, Table 1, Figures 3 and 4; Kowadlo et al. 2022, Tables 2, 3, 4, 7, 8, Figures 8
and 9.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from cfsl.spec import Noise, Occlusion, TaskSpec

Columns: TypeAlias = Mapping[str, TaskSpec]

_A = {f"A{nss}": TaskSpec.type_a(nss) for nss in (3, 5, 10)}
_B = {f"B{nss}": TaskSpec.type_b(nss) for nss in (3, 5, 10)}
_C = {f"C{nss}": TaskSpec.type_c(nss) for nss in (3, 5, 10)}
_D = {f"D{nss}": TaskSpec.type_d(nss, 2) for nss in (4, 8)}

TABLE_1: Columns = {**_B, **_C, **_A, **_D}
TABLE_1_TINY: Columns = {
    **{name: spec for name, spec in TABLE_1.items() if name not in ("B10", "C10")},
    "B8": TaskSpec.type_b(8),
    "C8": TaskSpec.type_c(8),
}
"""For slim-tiny, whose 40 test classes end B and C at eight support sets."""
FIGURE_3: Columns = {"B1": TaskSpec.few_shot(), **_B, **_C}
"""With one support set there is nothing to overwrite: both curves begin at B1."""
FIGURE_4: Columns = {
    f"B{nss}": TaskSpec.type_b(nss, k_target=1) if nss > 1 else TaskSpec.few_shot(k_target=1)
    for nss in (1, 2, 5, 10, 20, 40, 80, 160, 320, 640)
}
"""One target a class: what is wanted is the cost, not the accuracy."""
REPLICATION: Columns = {**_D, **_B}
SCALING: Columns = {
    "baseline1": TaskSpec.type_d(4, 2),
    "baseline2": TaskSpec.type_d(8, 2),
    "wide1": TaskSpec.wide(n_way=10),
    "wide2": TaskSpec.wide(n_way=100),
    "deep1": TaskSpec.deep(nss=20, n_way=2),
    "deep2": TaskSpec.deep(nss=80, n_way=5),
}
INSTANCE: Columns = {
    f"instance{number}": TaskSpec.instance(nss=nss, k_shot=shots)
    for number, (nss, shots) in enumerate(((2, 10), (4, 5), (10, 2), (20, 1)), start=1)
}
NOISE = (0.05, 0.1, 0.2, 0.4)
OCCLUSION = (0.05, 0.1, 0.2, 0.3)
MORE_OCCLUSION = (*OCCLUSION, 0.6, 0.9)
"""Levels of the paper for photographs: its discs covered one channel of three, ours cover all."""
SMOKE: Columns = {
    "A3": _A["A3"],
    "B3": _B["B3"],
    "C3": _C["C3"],
    "D4": _D["D4"],
    "instance2": INSTANCE["instance2"],
}


def corrupted(occlusion: tuple[float, ...]) -> Columns:
    """Return the instance test at every level of noise and of occlusion."""
    noise = {
        f"{name}-noise-{level}": spec.replace(corruption=Noise(fraction=level))
        for name, spec in INSTANCE.items()
        for level in NOISE
    }

    discs = {
        f"{name}-disc-{level}": spec.replace(corruption=Occlusion(fraction=level))
        for name, spec in INSTANCE.items()
        for level in occlusion
    }

    return noise | discs
