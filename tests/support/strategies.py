"""Hypothesis strategies: any task spec, and class sizes to draw it from."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from cfsl.spec import Noise, Occlusion, TaskSpec

fractions = st.floats(0.001, 1.0)
corruptions = st.one_of(
    st.builds(Noise, fraction=fractions),
    st.builds(
        Occlusion,
        fraction=fractions,
        shape=st.sampled_from(["disc", "square"]),
        value=st.floats(0, 1),
    ),
)

class_specs = st.builds(
    TaskSpec,
    nss=st.integers(1, 12),
    n_way=st.integers(1, 8),
    k_shot=st.integers(1, 4),
    k_target=st.integers(1, 6),
    cci=st.integers(1, 15),
    overwrite=st.booleans(),
    target_rule=st.sampled_from(["per_class", "per_support_set"]),
    corruption=st.none() | corruptions,
)


@st.composite
def instance_specs(draw: st.DrawFn) -> TaskSpec:
    corruption = draw(st.none() | corruptions)
    return TaskSpec.instance(
        nss=draw(st.integers(1, 12)),
        k_shot=draw(st.integers(1, 5)),
        n_way=draw(st.integers(1, 4)),
        k_target=1 if corruption is None else draw(st.integers(1, 3)),
        corruption=corruption,
    )


specs = class_specs | instance_specs()


@st.composite
def roomy_sizes(draw: st.DrawFn, spec: TaskSpec) -> np.ndarray:
    """Return class sizes that suffice, often just so; some classes are too small."""
    enough = draw(st.lists(st.integers(0, 7), min_size=spec.classes, max_size=spec.classes + 10))
    too_small = draw(st.lists(st.integers(0, spec.images_per_class - 1), max_size=5))
    sizes = [spec.images_per_class + extra for extra in enough] + too_small
    return np.array(draw(st.permutations(sizes)))


@st.composite
def drawable(draw: st.DrawFn) -> tuple[TaskSpec, np.ndarray]:
    spec = draw(specs)
    return spec, draw(roomy_sizes(spec))
