"""The HTML report in headless Chromium: what a reader's clicks, keys and fingers do."""

from __future__ import annotations

import pytest
from reports.test_report_page import GLQ12, GLQ13, hostile

from support.browser import Watched, chromium
from support.cli import glqprof as run
from support.nsys_builder import two_token_decode

pytestmark = pytest.mark.xdist_group("browser")  # one worker, one browser
DESK = {"viewport": {"width": 1200, "height": 900}}
PHONE = {"viewport": {"width": 375, "height": 740}, "is_mobile": True, "has_touch": True, "device_scale_factor": 2}


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    small = two_token_decode().write(folder / "decode.sqlite")
    pages = {
        "decode": [GLQ12],
        "pair": [GLQ12, GLQ13],
        "small": [small],
        "two": [small, small],
        "hostile": [hostile(folder)],
    }
    for name, captures in pages.items():
        assert run("report", *captures, "-o", folder / f"{name}.html").status == 0
    return {name: folder / f"{name}.html" for name in pages}


@pytest.fixture
def opened(browser, files):
    """Open a report; afterwards it must have asked for nothing and complained of nothing."""
    pages: list[Watched] = []

    def open_page(name: str = "decode", **options):
        pages.append(Watched(browser, files[name], **(DESK | options)))
        return pages[-1].page

    yield open_page
    for watched in pages:
        assert watched.trouble == []
        assert watched.requests == []
        watched.context.close()


def column(page, table: str, number: int) -> list[str]:
    return page.eval_on_selector_all(
        f"#{table} tbody tr:not([hidden])", f"rows => rows.map(r => r.cells[{number}].innerText)"
    )


def view(page) -> tuple[int, int]:
    page.wait_for_timeout(30)  # a frame
    return tuple(int(page.get_attribute("canvas", f"data-{end}")) for end in ("from", "to"))


def eventually(page, expression: str) -> None:
    """Wait until an expression holds. Playwright's own wait evaluates text in the page, which its policy forbids."""
    for _ in range(200):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(25)
    raise AssertionError(f"never came true: {expression}")


def press(page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


@pytest.mark.parametrize("name", ["decode", "pair", "small", "hostile"])
@pytest.mark.parametrize("options", [DESK, PHONE, {"color_scheme": "dark"}], ids=["desk", "phone", "dark"])
def test_loads_quietly_and_fits_the_width(opened, name, options) -> None:
    page = opened(name, **options)
    width, have = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width <= have
    assert int(page.get_attribute("canvas", "data-events")) > 0


def test_sorts_by_click_and_says_so(opened) -> None:
    page = opened()
    number = lambda texts: [float(t.replace(",", "")) for t in texts]  # noqa: E731
    assert page.get_attribute("#c1-k1 thead th:nth-child(4)", "aria-sort") == "descending"
    before = number(column(page, "c1-k1", 2))
    page.click("#c1-k1 thead th:nth-child(3) button")
    assert number(column(page, "c1-k1", 2)) == sorted(before, reverse=True)
    assert page.get_attribute("#c1-k1 thead th:nth-child(3)", "aria-sort") == "descending"
    assert page.get_attribute("#c1-k1 thead th:nth-child(4)", "aria-sort") == "none"
    page.click("#c1-k1 thead th:nth-child(3) button")
    assert number(column(page, "c1-k1", 2)) == sorted(before)
    page.click("#c1-k1 thead th:nth-child(2) button")
    buckets = column(page, "c1-k1", 1)
    assert buckets == sorted(buckets)
    assert len(buckets) == len(before)


def test_sorts_by_keyboard(opened) -> None:
    page = opened()
    page.focus("#c1-k1-search")
    press(page, "Tab", "Tab")  # the table's scroll region, then its first header
    assert page.evaluate("document.activeElement.textContent") == "kernel"
    press(page, "Tab", "Tab", "Enter")  # kernel, bucket, launches
    launches = [int(t.replace(",", "")) for t in column(page, "c1-k1", 2)]
    assert launches == sorted(launches, reverse=True)
    press(page, "Space")
    assert page.get_attribute("#c1-k1 thead th:nth-child(3)", "aria-sort") == "ascending"


def test_numbers_sort_by_value_and_dashes_last(opened) -> None:
    page = opened("pair")
    page.click("#comparison article table >> nth=2 >> thead th:nth-child(4) button")
    shown = page.eval_on_selector_all(
        "#comparison article .scroll:last-of-type tbody tr", "rows => rows.map(r => r.cells[3].innerText)"
    )
    numbers = [float(t) for t in shown if t != "–"]
    assert numbers == sorted(numbers, reverse=True)
    assert "–" in shown  # a kernel that appeared has no time on the other side


def test_searches_names_and_buckets(opened) -> None:
    page = opened()
    total = len(column(page, "c1-k1", 0))
    page.fill("#c1-k1-search", "MATVEC")
    assert set(column(page, "c1-k1", 1)) == {"matvec"}
    found = len(column(page, "c1-k1", 0))
    assert page.inner_text("#c1-kernels output") == f"{found} of {total} kinds"
    page.fill("#c1-k1-search", "no such kernel")
    assert column(page, "c1-k1", 0) == []
    page.fill("#c1-k1-search", "")
    assert len(column(page, "c1-k1", 0)) == total


def test_zooms_and_pans_by_buttons_keys_wheel_and_mouse(opened) -> None:
    page = opened()
    whole = view(page)
    assert whole[0] == 0
    page.click("[data-do=in]")
    half = view(page)
    assert half[1] - half[0] == pytest.approx(whole[1] / 2, abs=2)
    page.click("[data-do=right]")
    assert view(page)[0] > half[0]
    page.focus("canvas")
    press(page, "0")
    assert view(page) == whole
    press(page, "+", "+", "ArrowRight")
    quarter = view(page)
    assert quarter[1] - quarter[0] == pytest.approx(whole[1] / 4, abs=2)
    press(page, "Home")
    assert view(page) == whole
    box = page.locator("canvas").bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 60)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    eventually(page, f"document.querySelector('canvas').dataset.to < {whole[1]}")
    low, high = view(page)
    under = 300 / box["width"]
    assert low + under * (high - low) == pytest.approx(under * whole[1], rel=0.01)  # what is under the pointer stays
    page.mouse.down()
    page.mouse.move(box["x"] + 100, box["y"] + 60, steps=4)
    page.mouse.up()
    assert view(page)[0] > low
    events = int(page.get_attribute("canvas", "data-events"))
    press(page, "0")
    assert int(page.get_attribute("canvas", "data-events")) > events


def test_wheel_without_a_key_scrolls_the_page(opened) -> None:
    page = opened()
    page.locator("canvas").scroll_into_view_if_needed()
    box = page.locator("canvas").bounding_box()
    before, at = view(page), page.evaluate("scrollY")
    page.mouse.move(box["x"] + 300, box["y"] + 60)
    page.mouse.wheel(0, 120)
    eventually(page, f"scrollY != {at}")
    assert view(page) == before


def test_zoom_has_ends(opened) -> None:
    page = opened("small")
    page.focus("canvas")
    press(page, *["+"] * 30)
    low, high = view(page)
    assert high - low == 200
    press(page, *["ArrowLeft"] * 130)
    assert view(page)[0] == 0
    press(page, *["-"] * 40)
    assert view(page) == (0, 10_000)


def test_events_are_chosen_by_key_and_click_and_told(opened) -> None:
    page = opened("small")
    page.focus("canvas")
    press(page, "ArrowDown", "n")
    detail = page.locator(".detail")
    assert detail.inner_text().startswith("glq_moe_matvec<4> (matvec): 2 µs, from 2 µs on; GPU 0 stream 7")
    press(page, "n")
    assert "copy): 1 µs, from 4.6 µs on" in detail.inner_text()
    press(page, "p", "Enter")  # zooms to the first again
    low, high = view(page)
    assert 0 <= low < 2_000 < 4_000 < high <= 10_000
    press(page, "0")
    box = page.locator("canvas").bounding_box()
    page.mouse.click(box["x"] + 0.3 * box["width"], box["y"] + 24 + 36 + 15 + 13)  # 3 µs: in the kernel
    assert "glq_moe_matvec" in detail.inner_text()


def test_chooses_the_token(opened) -> None:
    page = opened()
    labels = page.eval_on_selector_all(".choice option", "all => all.map(o => o.textContent)")
    assert ["median" in labels[0], "slowest" in labels[1]] == [True, True]
    median = view(page)
    page.select_option(".choice", "1")
    assert view(page)[1] > median[1]


def test_fingers_pan_and_pinch(opened) -> None:
    page = opened(**PHONE)
    page.locator("canvas").scroll_into_view_if_needed()
    box = page.locator("canvas").bounding_box()
    session = page.context.new_cdp_session(page)
    y = box["y"] + 80

    def touch(kind: str, *xs: float) -> None:
        points = [{"x": x, "y": y, "id": i} for i, x in enumerate(xs)]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    whole = view(page)
    touch("touchStart", 150, 220)
    touch("touchMove", 100, 270)
    touch("touchMove", 60, 320)
    touch("touchEnd")
    low, high = view(page)
    assert high - low < 0.5 * (whole[1] - whole[0])
    touch("touchStart", 300)
    touch("touchMove", 200)
    touch("touchEnd")
    assert view(page)[0] > low


def background(page) -> str:
    return page.evaluate("getComputedStyle(document.documentElement).backgroundColor")


def test_theme_follows_the_system_or_the_switch(opened) -> None:
    light = background(opened())
    page = opened(color_scheme="dark")
    dark = background(page)
    assert dark != light
    page.select_option("#theme", "light")
    assert background(page) == light
    page.reload()
    assert page.input_value("#theme") in ("light", "auto")  # kept where a file may keep something
    page.select_option("#theme", "dark")
    page.emulate_media(color_scheme="light")
    assert background(page) == dark


def test_the_canvas_has_the_colours_of_its_theme(opened) -> None:
    count = "c => new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size"
    page = opened()
    pixels = page.eval_on_selector("canvas", "c => c.toDataURL()")
    assert page.eval_on_selector("canvas", count) > 20
    page.select_option("#theme", "dark")
    assert page.eval_on_selector("canvas", "c => c.toDataURL()") != pixels


def test_paper_shows_what_is_folded_away(opened) -> None:
    page = opened("small")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details.view:not([open])").count() == 0
    page.emulate_media(media="print", color_scheme="dark")
    assert page.locator("nav").is_hidden()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details.view[open]").count() == 0


def test_without_script_every_table_is_there(browser, files) -> None:
    watched = Watched(browser, files["decode"], java_script_enabled=False)
    assert watched.page.locator("#c1-k1 tbody tr").count() > 20
    assert watched.page.locator("noscript p").is_visible()
    assert watched.page.locator(".tools").is_hidden()
    watched.context.close()


def test_an_injected_script_does_not_run(browser, files) -> None:
    """The policy holds even where something got past the escapes."""
    watched = Watched(browser, files["small"])
    page = watched.page
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<p id=x onclick=\"window.bad=1\">x</p>')")
    page.evaluate("const s = document.createElement('script'); s.textContent = 'window.bad=1'; document.body.append(s)")
    page.click("#x")
    assert page.evaluate("window.bad") is None
    page.wait_for_timeout(50)
    assert len([line for line in watched.trouble if "Content Security Policy" in line]) == 2
    watched.context.close()


@pytest.mark.parametrize(
    ("name", "options"), [("two", DESK), ("small", PHONE | {"color_scheme": "dark"})], ids=["desk", "dark-phone"]
)
def test_axe_finds_no_barrier(opened, name, options) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python").Axe()
    page = opened(name, **options)
    page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
    results = axe.run(page, options={"runOnly": tags})
    assert results.violations_count == 0, results.generate_report()
