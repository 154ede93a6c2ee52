"""The page in a browser: it sorts, filters, shows numbers and cards, and fits a phone.

It asks nobody for anything.
"""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace

import numpy as np
import pytest

from cfsl.cards.collect import CardFile
from cfsl.cards.evidence import Evidence
from cfsl.report.images import AnsweredTask, TargetImage, TaskPicture
from cfsl.report.material import Material
from cfsl.report.page import page
from cfsl.report.serve import LOOPBACK, Built, server
from cfsl.spec import TaskSpec
from report_cards import card, cards_of, material

pytestmark = pytest.mark.browser
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
WICKED = "<script>alert(1)</script>"
DOT = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="


def _material() -> Material:
    learners = ["pretrain_tune", "protonet", "sca", "joint", WICKED]
    cards = [*cards_of("table1", learners), *cards_of("instance", learners[:2])]
    cards += [
        CardFile(f"cards/seed-{seed}.json", card("maml_low", TaskSpec.type_b(3), 0.6, seed=seed))
        for seed in range(3)
    ]
    smoke = card("protonet", TaskSpec.type_b(3), 0.3, profile="smoke")
    cards += [CardFile("cards/smoke.json", smoke)]
    matrix = np.array([[0.9, np.nan, np.nan], [0.5, 0.9, np.nan], [0.2, 0.4, 0.9]])
    evidence = {
        one.path: Evidence("ok", (), None, matrix)
        for one in cards
        if one.card.tasks.task_type == "B"
    }
    asked = [TargetImage(DOT, 0, 0), TargetImage(DOT, 1, 0)]
    answered = AnsweredTask(
        "omniglot",
        "quick",
        "B3",
        "type B",
        0,
        asked,
        {0: [DOT], 1: [DOT]},
        {"protonet": [0, 0], WICKED: [0, 1]},
    )
    picture = TaskPicture("omniglot", "B3", "type B", DOT, 900, 400)
    shown = {"pictures": [picture], "answered": [answered]}
    return material([f"results {WICKED}"], cards, evidence, **shown)


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install cfsl[browser]")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def address(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page(_material()))
    return f"file://{path}"


@pytest.fixture
def opened(browser, address):
    """Open the page at some width; at the end, it may have asked for nothing, nor complained."""
    contexts, troubles = [], []

    def open_page(width: int = 1280, height: int = 900, scheme: str = "light", place: str = ""):
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme
        )
        context.route(
            "http*://**", lambda route: (troubles.append(route.request.url), route.abort())
        )
        shown = context.new_page()
        shown.on("console", lambda message: troubles.append(f"{message.type}: {message.text}"))
        shown.on("pageerror", lambda error: troubles.append(str(error)))
        shown.on("dialog", lambda dialog: troubles.append(f"dialog {dialog.message}"))
        shown.goto(address + place)
        shown.wait_for_selector("html[data-drawn=yes]")
        contexts.append(context)
        return shown

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []


def _names(shown, board: int = 1) -> list[str]:
    rows = shown.locator(f"#board-{board} tbody tr:visible")
    return [row.get_attribute("data-learner") for row in rows.all()]


def test_a_column_is_sorted_by_its_button_and_says_so(opened):
    shown = opened()
    header = shown.locator("#board-1 th[data-column=B3]")
    header.get_by_role("button").click()
    assert header.get_attribute("aria-sort") == "descending" and _names(shown)[0] == WICKED
    header.get_by_role("button").click()
    assert header.get_attribute("aria-sort") == "ascending" and _names(shown)[0] == "pretrain_tune"
    shown.locator("#board-1 th").first.get_by_role("button").click()
    assert header.get_attribute("aria-sort") == "none" and _names(shown) == sorted(_names(shown))


def test_learners_columns_marks_and_profiles_can_be_left_out(opened):
    shown = opened()
    shown.get_by_label("learner", exact=True).first.fill("PROTO")
    assert (
        set(_names(shown)) == {"protonet"} and "rows" in shown.locator("#filter-state").inner_text()
    )
    shown.get_by_label("learner", exact=True).first.fill("")
    shown.get_by_label("transductive").select_option("no")
    assert "sca" not in _names(shown)
    shown.get_by_label("transductive").select_option("only")
    assert _names(shown) == ["sca"]
    shown.get_by_label("transductive").select_option("")
    shown.get_by_text("columns", exact=True).click()
    shown.locator(".choose input[value=B3]").uncheck()
    assert not shown.locator("#board-1 td[data-column=B3]").first.is_visible()
    assert shown.locator("#board-1 td[data-column=B5]").first.is_visible()
    shown.locator("#filter-profile").select_option("smoke")
    visible = shown.locator("section.board:visible").all()
    assert {board.get_attribute("data-profile") for board in visible} == {"smoke"}


def test_bold_is_the_best_of_those_that_are_left_when_transductive_learners_are_out(opened):
    shown = opened()
    weight = "element => getComputedStyle(element.querySelector('.mean')).fontWeight"

    def bold(name):
        cell = f'#board-1 tr[data-learner="{name}"] td[data-column=D8] a'
        return shown.locator(cell).evaluate(weight)

    assert bold(WICKED) == "800" and bold("protonet") == "400" and bold("joint") == "400"


def test_pointing_at_a_mark_shows_its_numbers(opened):
    shown = opened()
    mark = shown.locator(".plot .mark-symbol path").first
    mark.scroll_into_view_if_needed()
    mark.hover(force=True)
    tip = shown.locator("#vg-tooltip-element")
    tip.wait_for(state="visible")
    assert "±" in tip.inner_text() and "learner" in tip.inner_text()


def test_the_numbers_of_a_figure_are_there_as_a_table(opened):
    shown = opened()
    shown.locator("details.numbers summary").first.click()
    table = shown.locator("details.numbers table").first
    assert "±" in table.inner_text() and table.locator("th[scope=col]").count() == 4


def test_a_number_opens_its_card_with_command_and_references(opened):
    shown = opened()
    shown.locator("#board-1 tr[data-learner=protonet] td[data-column=B3] a").click()
    dialog = shown.get_by_role("dialog")
    text = dialog.inner_text()
    assert "cfsl eval protonet --data omniglot" in text and "@inproceedings{snell2017" in text
    assert "a processor" in text and "3 epochs x 9 updates" in text and "d" * 64 in text
    shown.keyboard.press("Escape")
    assert not dialog.is_visible()


def test_the_seeds_of_a_cell_are_all_there(opened):
    shown = opened()
    shown.locator("#board-1 tr[data-learner=maml_low] td[data-column=B3] a").click()
    shown.get_by_role("dialog").get_by_text("seed 2").click()
    assert "cards/seed-2.json" in shown.get_by_role("dialog").inner_text()


def test_a_published_number_says_what_it_is_worth(opened):
    shown = opened()
    shown.locator("#board-1 tr[data-learner=protonet] td[data-column=C3] button.published").click()
    text = shown.get_by_role("dialog").inner_text()
    assert "superseded" in text and "last image of its label" in text and "points" in text


def test_a_card_has_an_address(opened, address):
    shown = opened()
    target = shown.locator("#board-1 a.num").first.get_attribute("href")
    other = opened(place=target)
    assert other.get_by_role("dialog").is_visible()


def test_all_of_it_works_by_keyboard(opened):
    shown = opened()
    shown.keyboard.press("Tab")
    assert shown.evaluate("document.activeElement.className") == "skip"
    shown.locator("#board-1 th[data-column=B5] button").focus()
    shown.keyboard.press("Enter")
    assert shown.locator("#board-1 th[data-column=B5]").get_attribute("aria-sort") == "descending"
    number = shown.locator("#board-1 tr[data-learner=protonet] td[data-column=B5] a")
    number.focus()
    assert number.evaluate("element => getComputedStyle(element).outlineStyle") == "solid"
    shown.keyboard.press("Enter")
    assert shown.get_by_role("dialog").is_visible()
    shown.keyboard.press("Escape")
    assert shown.evaluate("document.activeElement.className").startswith("num")


def test_a_learner_called_like_a_script_is_text(opened):
    shown = opened()
    assert shown.locator("#board-1 tbody th", has_text=WICKED).count() == 1
    shown.locator("#board-1 tr:last-child a, #board-1 tbody tr", has_text=WICKED).locator(
        "a"
    ).first.click()
    assert WICKED in shown.get_by_role("dialog").inner_text()
    shown.keyboard.press("Escape")
    shown.locator("#answers-learner").select_option(WICKED)
    assert "2 of these 2 targets right" in shown.locator("#answers-note").inner_text()


def test_right_and_wrong_answers_stand_beside_what_they_were_taken_for(opened):
    shown = opened()
    shown.locator("#answers-learner").select_option("protonet")
    assert shown.locator(".target").count() == 2 and shown.locator(".target.wrong").count() == 1
    assert "taken for label 0" in shown.locator(".target.wrong").inner_text()
    assert all(image.get_attribute("alt") for image in shown.locator("img").all())


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_the_page_never_scrolls_sideways(opened, width):
    shown = opened(width, 740)
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    shown.locator("#board-1 a.num").first.click()
    box = shown.get_by_role("dialog").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= width


CONTRAST = """selector => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (v) => v <= 10.31 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4;
  const light = (text) => {
    const [r, g, b] = parts(text).slice(0, 3).map(linear);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const element = document.querySelector(selector), clear = "rgba(0, 0, 0, 0)";
  const ground = (one) => getComputedStyle(one).backgroundColor;
  let behind = element;
  while (ground(behind) === clear) behind = behind.parentElement;
  const lights = [light(getComputedStyle(element).color), light(ground(behind))];
  const [low, high] = lights.sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}"""
TEXTS = (
    *(
        "h1",
        ".lead",
        "nav a",
        ".note",
        ".legend",
        ".badge",
        ".num .mean",
        ".num .ci",
        ".num.best .mean",
        "pre",
    ),
    *(
        "button.published",
        ".sound i",
        ".superseded i",
        "thead button",
        "figcaption",
        ".verdict",
        "footer p",
    ),
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_in_dark(opened, tmp_path, scheme):
    shown = opened(scheme=scheme)
    low = {
        text: round(ratio, 2) for text in TEXTS if (ratio := shown.evaluate(CONTRAST, text)) < 4.5
    }
    assert low == {}
    colour = shown.locator(".plot text").first.evaluate("element => getComputedStyle(element).fill")
    assert colour == shown.evaluate("getComputedStyle(document.body).color"), (
        "figures follow light and dark"
    )
    shown.screenshot(path=tmp_path / f"{scheme}.png")
    assert (tmp_path / f"{scheme}.png").stat().st_size > 10_000


def test_the_page_can_be_printed(opened, tmp_path):
    shown = opened(scheme="dark")
    shown.emulate_media(media="print")
    assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not shown.locator(".filters").is_visible()
    shown.pdf(path=tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def test_a_served_page_shows_itself_again_when_cards_arrive(browser):
    material, state = _material(), {"cards": 3}

    def build() -> str:
        return page(
            replace(material, cards=material.cards[: state["cards"]], live=True, evidence={})
        )

    running = server(Built(build, lambda: str(state["cards"])), 0)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    try:
        shown = browser.new_page()
        shown.goto(f"http://{LOOPBACK}:{running.server_address[1]}/")
        shown.wait_for_selector(".facts li >> text=3 cards")
        shown.wait_for_timeout(2500)  # it has asked once
        state["cards"] = 5
        shown.wait_for_selector(".facts li >> text=5 cards", timeout=15_000)
        shown.close()
    finally:
        running.shutdown()
        thread.join()
        running.server_close()
