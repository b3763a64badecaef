"""The dashboard as people meet it: with eyes or ears, by mouse or keyboard, on a wide screen or a telephone."""

from __future__ import annotations

import os
import struct
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.db.models import Sum
from selenium.webdriver.common.keys import Keys

from django_idempotency.models import OutcomeCount

from .conftest import EXPORT, PAY, REFUND

APP = "/admin/django_idempotency/"
LIST = f"{APP}idempotencykey/"
PAGE = f"{LIST}dashboard/"
SCREENSHOTS = Path(__file__).resolve().parents[2] / "docs/_static"

# What the server shows is committed by a fixture of the module; this is for what is compared with it.
pytestmark = pytest.mark.django_db


def total(**terms):
    return OutcomeCount.objects.filter(**terms).aggregate(total=Sum("n"))["total"]


def test_it_shows_what_is_in_the_database(browser):
    browser.open(PAGE)
    assert [tile.text.replace("\n", " ") for tile in browser.all(".tiles li")] == [
        "2 held: nobody knows yet",
        "3 stuck: the lease has lapsed",
        "1 left to a person",
        "4 in flight",
    ]
    assert [heading.text for heading in browser.all("article h3")] == [PAY, REFUND, EXPORT]
    said = [heading.text for heading in browser.all("article:first-of-type h4")]
    requests, replays = total(route=PAY), total(route=PAY, outcome="replayed")
    assert said == [
        f"Answered by a replay: {replays / requests * 100:.1f} %",
        f"409: still running: {total(route=PAY, outcome='conflict')}",
        "422: other content: 0",
        "Oldest in flight: 31 min",
    ]
    assert f"{requests} requests with a key" in browser.one("article:first-of-type p").text.replace(",", "")
    assert len(browser.all("svg.partitions .frame")) == len(browser.all("#partitions-rows ~ tbody tr")) >= 10
    fates = [row.text for row in browser.all("#partitions-rows ~ tbody td:last-child")]
    assert fates[0] == "dropped by the next pruning"
    assert all(fate.startswith("dropped after ") for fate in fates[1:])
    storage = [row.text for row in browser.all("section[aria-labelledby=storage] tbody th")]
    assert storage == [PAY, REFUND, EXPORT]


def test_bars_are_drawn(browser):
    """Where style or markup hides them, they have no size."""
    browser.open(PAGE)
    sizes = browser.ask(
        "return [...document.querySelectorAll('article:first-of-type .bars, svg.partitions .fill')]"
        ".map(each => each.getBoundingClientRect()).map(box => Math.min(box.width, box.height))"
    )
    assert [size > 1 for size in sizes[:4]] == [True, True, False, True], "there was no 422 on this route"
    assert all(size > 1 for size in sizes[4:])
    assert len(sizes) > 8


def test_links_lead_to_the_lists(browser):
    for text, query, rows in (("held", "state=held", 2), ("stuck", "state=stuck", 3), ("left to", "state=person", 1)):
        browser.open(PAGE)
        browser.follow(browser.one(".tiles").find_element("partial link text", text))
        assert urlsplit(browser.path).query == query
        assert len(browser.all("#result_list tbody tr")) == rows


def test_the_ways_in(browser):
    for page in (LIST, APP):
        browser.open(page)
        browser.follow(browser.link("ashboard" if page == APP else "DASHBOARD"))
        assert browser.path == PAGE


def test_a_route_and_a_time_by_keyboard_alone(browser):
    browser.open(PAGE)
    select = browser.one("#route")
    browser.ask("arguments[0].focus()", select)
    browser.press("shop.views.R")
    button = browser.tab()
    assert button.get_attribute("value") == "Show"
    browser.follow()
    assert [heading.text for heading in browser.all("article h3")] == [REFUND]
    browser.ask("arguments[0].focus()", browser.link("7 days"))
    browser.follow()
    assert [heading.text for heading in browser.all("article h3")] == [REFUND]
    assert browser.one(".choices [aria-current]").text == "7 days"


def test_the_keyboard_reaches_everything_in_order_and_shows_where_it_is(browser):
    browser.open(PAGE)
    expected = browser.ask(
        "const all = '#content-main :is(a, select, input:not([type=hidden]), summary, .wide)';"
        "return [...document.querySelectorAll(all)].filter(each => each.checkVisibility())"
    )
    assert len(expected) > 15
    browser.ask("document.querySelector('#content-start').focus()")
    for wanted in expected:
        reached = browser.tab()
        assert reached == wanted, (reached.get_attribute("outerHTML")[:200], wanted.get_attribute("outerHTML")[:200])
        outline = browser.ask(
            "const style = getComputedStyle(arguments[0]); return `${style.outlineStyle} ${style.outlineWidth}`",
            reached,
        )
        assert not {"none", "0px"} & set(outline.split()), reached.get_attribute("outerHTML")[:200]


def test_the_numbers_behind_the_pictures_open_by_keyboard(browser):
    browser.open(PAGE)
    table = browser.one("article:first-of-type details table")
    assert not table.is_displayed()
    browser.ask("arguments[0].focus()", browser.one("article:first-of-type summary"))
    browser.press(Keys.ENTER)
    assert table.is_displayed()
    assert len(browser.all("article:first-of-type tbody tr")) == 46


def test_whoever_cannot_see_hears_it(browser):
    """What the browser tells a screen reader: names and descriptions, and headings that do not skip a level."""
    browser.open(PAGE)
    for picture in browser.all("#content-main svg[role=img]"):
        assert picture.accessible_name
    replays = browser.one("article:first-of-type svg")
    assert "Answered by a replay" in replays.accessible_name
    assert "At most" in replays.accessible_name
    levels = [int(heading.tag_name[1]) for heading in browser.all("#content h1, #content h2, #content h3, #content h4")]
    assert levels[0] == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_no_barrier_is_found(browser, scheme, width):
    browser.prefer(scheme)
    browser.resize(width, 900)
    browser.open(PAGE)
    for summary in browser.all("summary"):
        browser.ask("arguments[0].parentNode.open = true", summary)
    assert browser.barriers("#content-main") == []


def test_dark_is_dark_and_bars_stand_out_in_both(browser):
    seen = {}
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        browser.open(PAGE)
        seen[scheme] = browser.ask(
            "const colour = (selector, property) => getComputedStyle(document.querySelector(selector))[property];"
            "return [colour('body', 'backgroundColor'), colour('.bars', 'fill'), colour('.partitions .fill', 'fill')]"
        )
    assert luminance(seen["light"][0]) > 0.9
    assert luminance(seen["dark"][0]) < 0.1
    for background, *bars in seen.values():
        for bar in bars:
            assert contrast(background, bar) >= 3, "WCAG 1.4.11"


def test_on_a_telephone_the_page_does_not_scroll_sideways(browser):
    browser.resize(360, 800)
    browser.open(PAGE)
    assert browser.ask("return document.documentElement.scrollWidth") <= 360
    table = browser.one("#partitions-rows").find_element("xpath", "ancestor::div[1]")
    assert browser.ask("return arguments[0].scrollWidth > arguments[0].clientWidth", table), "the table does, by itself"


def test_nothing_is_refused_and_nobody_else_is_asked(browser):
    """Under a policy that allows nothing inline and nothing from elsewhere."""
    browser.hosts(), browser.complaints()
    for query in ("", "?range=7d", "?range=1h"):
        browser.open(f"{PAGE}{query}")
    assert browser.complaints() == []
    assert browser.hosts() == {urlsplit(browser.server).netloc}


def test_it_speaks_german(browser):
    browser.speak("de")
    browser.open(PAGE)
    assert browser.one("html").get_attribute("lang") == "de"
    assert [heading.text for heading in browser.all("#content h2")] == [
        "Jetzt", "Anzeichen fehlerhafter Clients", "Anfragen der letzten 24 Stunden",
        "Partitionen versiegelter Einträge", "Speicher je Route",
    ]  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_documentation_has_pictures_of_it(browser, tmp_path, scheme):
    """``IDEMPOTENCY_SCREENSHOTS=1`` takes them anew. Otherwise it is seen whether they are of such a page still."""
    published = SCREENSHOTS / f"dashboard-{scheme}.png"
    taken = published if os.environ.get("IDEMPOTENCY_SCREENSHOTS") else tmp_path / published.name
    browser.prefer(scheme)
    browser.resize(1200, 900)
    browser.open(PAGE)
    # Without the list of apps beside it, which is not ours.
    browser.ask("document.querySelector('#main.shifted #toggle-nav-sidebar')?.click()")
    browser.picture(taken, height=browser.ask("return document.documentElement.scrollHeight"))
    width, height = size_of_png(taken)
    assert size_of_png(published) == (width, pytest.approx(height, rel=0.1))


def size_of_png(path):
    header = path.read_bytes()[:24]
    assert header.startswith(b"\x89PNG")
    return struct.unpack(">II", header[16:24])


def luminance(colour):
    """Of ``rgb(18, 18, 18)``, as WCAG reckons it."""
    red, green, blue = (int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(","))
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (red, green, blue)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one, other):
    lower, higher = sorted((luminance(one), luminance(other)))
    return (higher + 0.05) / (lower + 0.05)
