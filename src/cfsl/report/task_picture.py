"""One task as a picture: the support sets in order of time, then the target set.

Every image stands in a frame of its label's colour under its label's number, so that colour is
never the only cue. The layout is searched: the largest images that make a tidy picture of a size
fit for a page; for huge tasks a larger picture, then thumbnails, and at last only the first images
of each label, as the caption says.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby, product

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image, ImageDraw, ImageOps

from cfsl.report.palette import Colour, label_colours, text_colour_on, wrapped, write, write_centred

_PAGES = ((1900, 1500), (3760, 3700))  # what fits a page of a paper; the most that is still handy
_NO_LIMIT = 10**6
_SIDES = (24, 128)  # least and most of the longer side of a shown image
_PAGE_SIDE = 56  # its least in a picture that fits a page
_MOST_TARGETS = 2000  # more would be a carpet that nobody reads
_LEAST_WIDTH = 560  # room for the heading
_PLEASANT_ASPECT = 2.0
_TIDY_BLANK = 0.15  # the most of the support sets' places that a short last row may leave empty
_WHITE, _BORDER, _ARROW = (255, 255, 255), (178, 178, 186), (110, 110, 118)
_GROUP_FILL, _GROUP_TEXT = (230, 236, 245), (70, 84, 110)

_Pair = tuple[int, int]


@dataclass(frozen=True)
class Panel:
    """One support set, or the target set."""

    title: str
    images: UInt8[np.ndarray, "n channels height width"]
    labels: Int[np.ndarray, " n"]
    group: int | None

    def by_label(self) -> dict[int, list[int]]:
        """Return the places of each label's images, in label order."""
        order = np.argsort(self.labels, kind="stable").tolist()
        runs = groupby(order, lambda place: int(self.labels[place]))
        return {label: list(places) for label, places in runs}


def draw_panels(panels: Sequence[Panel], *, heading: str, caption: str, labels: int) -> Image.Image:
    """Draw support panels in order, bracketed by class group, then the target panel, the last one.

    `labels` is the number of labels in the whole task. All images have one size.
    """
    plan = _choose_plan(_Counts.of(panels))
    width = max(plan.width, _LEAST_WIDTH)
    size = max(width // 60, plan.style.text, 17)
    heading_lines = wrapped(heading, size * 5 // 4, width)
    caption_lines = wrapped(caption + _shown_note(panels, plan.keep), size, width)

    margin = plan.style.gap
    top = margin + 2 * size * len(heading_lines)
    bottom = top + plan.height + size
    height = bottom + size * 3 // 2 * len(caption_lines) + margin

    image = Image.new("RGB", (width + 2 * margin, height), _WHITE)

    for number, line in enumerate(heading_lines):
        write(
            image, (margin, margin + size // 2 + 2 * size * number), line, size * 5 // 4, bold=True
        )
    for number, line in enumerate(caption_lines):
        write(image, (margin, bottom + size * 3 * (2 * number + 1) // 4), line, size)

    _draw_body(
        image, panels, plan, (margin + (width - plan.width) // 2, top), label_colours(labels)
    )
    return image


def _shown_note(panels: Sequence[Panel], keep: int) -> str:
    """Say how many of the images are shown, if not all are."""
    notes = []
    for name, part in (("support", panels[:-1]), ("target", panels[-1:])):
        total = sum(len(panel.labels) for panel in part)
        shown = sum(
            min(len(places), keep) for panel in part for places in panel.by_label().values()
        )
        if shown < total:
            notes.append(f"{shown} of {total} {name} images")
    return f" Shown: {' and '.join(notes)} (the first {keep} of each label)." if notes else ""


@dataclass(frozen=True)
class _Counts:
    """What the layout depends on."""

    sets: int
    group_size: int  # support sets under one bracket; 1 where no brackets are drawn
    support: _Pair  # the most labels in a set, and the most images of one label
    target: _Pair
    image: _Pair
    digits: int

    @classmethod
    def of(cls, panels: Sequence[Panel]) -> _Counts:
        places = [panel.by_label() for panel in panels]
        sizes = [(len(labels), max(map(len, labels.values()))) for labels in places]
        height, width = panels[0].images.shape[2:]
        runs = [len(list(run)) for _, run in groupby(panel.group for panel in panels[:-1])]

        return cls(
            sets=len(panels) - 1,
            group_size=max(runs) if len(runs) > 1 else 1,
            support=(
                max(labels for labels, _ in sizes[:-1]),
                max(shots for _, shots in sizes[:-1]),
            ),
            target=sizes[-1],
            image=(width, height),
            digits=len(str(max(max(labels) for labels in places))),
        )


class _Style:
    """The lengths that follow from the size of one shown image."""

    def __init__(self, counts: _Counts, zoom: Fraction) -> None:
        self.zoom = zoom
        self.width, self.height = (math.ceil(length * zoom) for length in counts.image)
        self.frame = 2 if self.width < 48 else 3 if self.width < 80 else 4
        self.text = min(max(round(0.29 * self.width), 12), 26)
        self.strip = self.text + 4  # holds a label's number
        self.number = counts.digits * self.text * 5 // 8
        self.between = self.text // 3 + 1  # from one label's images to the next one's
        self.pad = self.text // 2 + 2  # from a panel's border to its images
        self.title = self.text * 7 // 4
        self.gap = 2 * self.text  # from panel to panel: the arrow of time lies in it

    @classmethod
    def sizes(cls, counts: _Counts, least_side: int) -> Iterator[_Style]:
        """Yield whole-number zooms and shrinks from large to small."""
        side = max(counts.image)
        zooms = [Fraction(zoom) for zoom in range(_SIDES[1] // side, 0, -1)]
        shrinks = [Fraction(1, shrink) for shrink in range(2, side // _SIDES[0] + 1)]
        return (
            cls(counts, zoom) for zoom in zooms + shrinks if least_side <= side * zoom <= _SIDES[1]
        )


class _Grid:
    """A panel's rows of blocks, one for each label, and the rows of images within a block."""

    def __init__(self, style: _Style, size: _Pair, columns: int, shot_columns: int) -> None:
        labels, shots = size
        rows, shot_rows = math.ceil(labels / columns), math.ceil(shots / shot_columns)
        self.columns, self.shot_columns = columns, shot_columns

        images_width = shot_columns * (style.width + style.frame) + style.frame
        images_height = shot_rows * (style.height + style.frame) + style.frame

        self.block_width = max(images_width, style.number)
        self.pitch = self.block_width + style.between, style.strip + images_height + style.between
        self.width = columns * self.pitch[0] - style.between + 2 * style.pad
        self.height = style.title + rows * self.pitch[1] - style.between + 2 * style.pad

        self.blank = 1 - labels / (columns * rows)
        self.shot_blank = 1 - shots / (shot_columns * shot_rows)
        self.costs = self.height, self.blank, self.shot_blank
        self.is_upright = columns * shot_columns < rows * shot_rows

    @classmethod
    def fitting(cls, style: _Style, size: _Pair, width: int) -> list[_Grid]:
        """Return grids of at most this width, from narrow to wide, ever lower or fuller."""
        shapes = {
            (math.ceil(size[0] / rows), math.ceil(size[1] / shot_rows))
            for rows, shot_rows in product(range(1, size[0] + 1), range(1, size[1] + 1))
        }

        useful: list[_Grid] = []
        for grid in sorted(
            (cls(style, size, *shape) for shape in shapes), key=lambda grid: grid.width
        ):
            outdone = any(all(map(operator.le, other.costs, grid.costs)) for other in useful)
            if grid.width <= width and not outdone:
                useful.append(grid)

        return useful


class _Plan:
    """A layout of the whole picture, without heading and caption."""

    def __init__(
        self, counts: _Counts, style: _Style, per_row: int, grids: tuple[_Grid, _Grid], keep: int
    ) -> None:
        self.style, self.per_row, self.keep = style, per_row, keep
        self.support, self.target = grids

        self.bracket = style.title if counts.group_size > 1 else 0
        self.row_height = self.bracket + self.support.height + style.gap
        self.row_width = per_row * (self.support.width + style.gap) - style.gap
        self.rows = math.ceil(counts.sets / per_row)

        self.set_blank = 1 - counts.sets / (self.rows * per_row)
        self.width = max(self.row_width, self.target.width)
        self.height = self.rows * self.row_height + style.gap + self.target.height

    def awkwardness(self) -> float:
        """Weigh an odd shape, many rows of sets, blank places and unequal widths together."""
        shape = math.log(self.width / self.height / _PLEASANT_ASPECT)
        unlike = abs(self.row_width - self.target.width) / self.width
        blank = (
            self.support.blank
            + self.support.shot_blank
            + self.target.blank
            + self.target.shot_blank
        )

        return (
            max(shape / 2, -shape)
            + 0.3 * math.log(self.rows)
            + unlike
            + 2 * (blank + self.set_blank)
        )

    def is_tidy(self) -> bool:
        """Tell whether labels and sets fill their rectangles, and sets stand in rows of several."""
        filled = not (self.support.blank or self.support.shot_blank or self.target.shot_blank)
        in_rows = self.set_blank < _TIDY_BLANK and (self.per_row >= 3 or self.rows == 1)
        return filled and in_rows and not self.support.is_upright


def _choose_plan(counts: _Counts) -> _Plan:
    """Return the tidiest plan with the largest images that fit, and all images if they fit."""
    keep = max(counts.support[1], min(counts.target[1], _MOST_TARGETS // counts.target[0]))
    while True:
        last_resort = ((_PAGES[1][0], _NO_LIMIT),) if keep == 1 else ()
        for page, tidy in product(_PAGES + last_resort, (True, False)):
            styles = _Style.sizes(counts, _PAGE_SIDE if page == _PAGES[0] else _SIDES[0])
            for style in sorted(
                styles, key=lambda style: style.zoom, reverse=page not in last_resort
            ):
                plans = list(_plans(counts, style, page, keep, tidy))
                if plans:
                    return min(plans, key=_Plan.awkwardness)
        keep = math.ceil(keep / 2)


def _plans(counts: _Counts, style: _Style, page: _Pair, keep: int, tidy: bool) -> Iterator[_Plan]:
    """Yield the plans that fit the page, all or only the tidy ones."""
    support, target = (
        (labels, min(shots, keep)) for labels, shots in (counts.support, counts.target)
    )

    targets = _Grid.fitting(style, target, page[0])
    size, groups = counts.group_size, math.ceil(counts.sets / counts.group_size)
    whole_groups = {math.ceil(groups / rows) * size for rows in range(1, groups + 1)}

    for per_row in whole_groups | {math.ceil(size / rows) for rows in range(1, size + 1)}:
        share = (page[0] + style.gap) // per_row - style.gap
        for grids in product(_Grid.fitting(style, support, share), targets):
            plan = _Plan(counts, style, per_row, grids, keep)
            if plan.height <= page[1] and (plan.is_tidy() or not tidy):
                yield plan


def _draw_body(
    image: Image.Image,
    panels: Sequence[Panel],
    plan: _Plan,
    corner: _Pair,
    colours: Sequence[Colour],
) -> None:
    """Draw the support sets, with arrows of time between them, a rule, and the target set."""
    draw, gap, (left, top) = ImageDraw.Draw(image), plan.style.gap, corner
    start = left + (plan.width - plan.row_width) // 2
    columns = [start + column * (plan.support.width + gap) for column in range(plan.per_row)]
    rows = [top + row * plan.row_height + plan.bracket for row in range(plan.rows)]
    corners = [(x, y) for y in rows for x in columns][: len(panels) - 1]

    if plan.bracket:
        _draw_brackets(image, panels[:-1], plan, corners)

    for number, (x, y) in enumerate(corners):
        _draw_panel(image, panels[number], plan, plan.support, (x, y), colours)
        if number:
            tip, middle, head = x - gap // 5, y + plan.support.height // 2, gap // 5
            draw.line((tip - gap * 3 // 5, middle, tip - head, middle), _ARROW, 2)
            draw.polygon(
                [(tip, middle), (tip - head, middle - head), (tip - head, middle + head)], _ARROW
            )

    bottom = top + plan.rows * plan.row_height
    for x in range(left, left + plan.width, 12):
        draw.line((x, bottom, x + 5, bottom), _ARROW, 2)

    target_corner = left + (plan.width - plan.target.width) // 2, bottom + gap
    _draw_panel(image, panels[-1], plan, plan.target, target_corner, colours)


def _draw_brackets(
    image: Image.Image, supports: Sequence[Panel], plan: _Plan, corners: Sequence[_Pair]
) -> None:
    """Lay one ground under the support sets of a class group, as far as they stand in one row."""
    draw, text, edge = ImageDraw.Draw(image), plan.style.text, plan.style.gap // 5
    places = [(panel.group or 0, y, x) for panel, (x, y) in zip(supports, corners, strict=True)]

    for (group, y), run in groupby(places, lambda place: place[:2]):
        lefts = [x for _, _, x in run]
        right = lefts[-1] + plan.support.width
        box = (lefts[0] - edge, y - plan.bracket, right + edge, y + plan.support.height + edge)
        draw.rounded_rectangle(box, text // 2, _GROUP_FILL)
        middle = (lefts[0] + right) // 2, y - plan.bracket // 2
        write_centred(image, middle, f"classes {group + 1}", text, _GROUP_TEXT)


def _draw_panel(
    image: Image.Image,
    panel: Panel,
    plan: _Plan,
    grid: _Grid,
    corner: _Pair,
    colours: Sequence[Colour],
) -> None:
    """Draw border and title, and a block for each label: its number, its images below."""
    draw, style, (left, top) = ImageDraw.Draw(image), plan.style, corner
    box = (left, top, left + grid.width - 1, top + grid.height - 1)
    draw.rounded_rectangle(box, style.text // 3, _WHITE, _BORDER, 1)
    title_start = left + style.pad, top + (style.pad + style.title) // 2
    write(image, title_start, panel.title, style.text * 9 // 8, bold=True)

    for number, (label, places) in enumerate(panel.by_label().items()):
        row, column = divmod(number, grid.columns)
        x = left + style.pad + column * grid.pitch[0]
        y = top + style.pad + style.title + row * grid.pitch[1]

        colour = colours[label]
        draw.rectangle((x, y, x + grid.block_width - 1, y + style.strip), colour)
        middle = x + grid.block_width // 2, y + style.strip // 2 + 1
        write_centred(image, middle, str(label), style.text, text_colour_on(colour))

        for shot, place in enumerate(places[: plan.keep]):
            shot_row, shot_column = divmod(shot, grid.shot_columns)
            shot_x = x + shot_column * (style.width + style.frame)
            shot_y = y + style.strip + shot_row * (style.height + style.frame)
            shown = _shown_image(panel.images[place], style)
            image.paste(ImageOps.expand(shown, style.frame, colour), (shot_x, shot_y))


def _shown_image(pixels: UInt8[np.ndarray, "channels height width"], style: _Style) -> Image.Image:
    """Return an image enlarged pixel by pixel, or reduced by averaging."""
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, -1)).convert(
        "RGB"
    )
    if style.zoom < 1:
        return image.reduce(style.zoom.denominator)
    return image.resize((style.width, style.height), Image.Resampling.NEAREST)
