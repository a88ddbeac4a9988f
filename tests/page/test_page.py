"""--perf-html: one file that opens fast anywhere, with every figure, sortable, filterable, by keyboard."""

import re
from dataclasses import replace

import pytest

from perfsuite.report import page
from tests.page import browser
from tests.page.pages import ENVIRONMENTS, result
from tests.readings import changed

WHEN = "2026-11-16 07:00 UTC"
needs_browser = pytest.mark.skipif(browser.find() is None, reason="there is no Chromium on this machine")


def written(folder, count, **names):
    path = folder / f"{count}.html"
    path.write_text(page.render([result(number, **names) for number in range(count)], ENVIRONMENTS, WHEN))
    return path


@pytest.fixture(scope="module")
def one_and_sixty(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    return {count: written(folder, count) for count in (1, 60)}


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    opened = browser.Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


def test_the_page_is_one_small_file_that_asks_nobody(one_and_sixty):
    """Below 5 MB with sixty tests, and no address in it but namespaces and its library's own."""
    text = one_and_sixty[60].read_text()
    assert len(text.encode()) < 5_000_000
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", text)
    assert "default-src 'none'" in text
    assert not re.search(r"<!--[A-Z]+-->", text)


def test_figures_and_verdicts_are_text(one_and_sixty):
    """Readable without a script: the reason for a failure and the cause with its advice."""
    text = one_and_sixty[1].read_text()
    assert "samples/s 2," in text
    assert "is 28." in text
    assert "likely cause: data-bound" in text
    assert "num_workers=4 (now 0)" in text


def test_a_name_cannot_leave_its_place(tmp_path):
    """Users choose the ids of tests."""
    evil = "tests/test_a.py::test_b[</script><script>alert(1)</script>-\"'&<!--DATA-->]"
    text = written(tmp_path, 1, name=evil).read_text()
    assert "<script>alert" not in text
    assert 3 == len(re.findall(r"<script", text))


def test_a_modelled_figure_says_so(one_and_sixty):
    """In its row, in its charts' titles, and above all of them."""
    text = one_and_sixty[60].read_text()
    assert "nothing was measured on a GPU" in text
    assert '<span class="tag">modelled</span>' in text
    assert "nothing was measured" not in one_and_sixty[1].read_text()


def test_ranks_have_columns_of_their_own_where_there_are_some(one_and_sixty):
    """Efficiency and skew are in the overview, unless one process measured."""
    alone = result(1)
    (one,) = alone.readings
    together = changed(one, scaling_efficiency=0.478, rank_skew=0.82, ranks=({"own_seconds": 0.01},) * 2)
    text = page.render([alone, replace(alone, readings=(together,))], ENVIRONMENTS, WHEN)
    head, body = re.search(r"<thead>(.*?)</thead>.*?<tbody>(.*?)</tbody>", text, re.DOTALL).groups()
    assert ["scaling efficiency", "rank skew"] == re.findall(r"<button type=button>([^<]*)", head)[5:7]
    rows = [re.findall(r'<td data-value="[^"]*">([^<]*)', row)[3:5] for row in body.split("<tr")[1:]]
    assert [["–", "–"], ["47.8 %", "82.0 %"]] == rows
    assert "rank skew" not in one_and_sixty[60].read_text()


def test_columns_are_those_that_somebody_fills():
    """Columns that are judged on a modelled card are shown; columns without a figure are not."""
    (one,) = result(4).readings
    counted = replace(one, kind="step").with_figures(
        kernels=95.0, syncs=1.0, data_wait=None, utilization=None
    )
    text = page.render([replace(result(4), readings=(counted,))], ENVIRONMENTS, WHEN)
    head = re.search(r"<thead>(.*?)</thead>", text, re.DOTALL)[1]
    told = ["verdict", "test", "samples/s", "step time", "speed against baseline"]
    told += ["kernels", "host syncs", "likely cause", "peak memory"]
    assert told == re.findall(r"<button type=button>([^<]*)", head)


def test_a_note_is_announced_in_the_overview():
    """The table alone must show that there are notes."""
    (one,) = result(1).readings
    noted = replace(one, notes=('other processes kept this one from a "core"',))
    text = page.render([replace(result(1), readings=(noted,))], ENVIRONMENTS, WHEN)
    assert 'title="other processes kept this one from a &quot;core&quot;">noted</span>' in text


def test_what_was_kept_is_told_with_its_figure():
    """A bound alone does not say how near it is."""
    text = page.render([result(1)], ENVIRONMENTS, WHEN)
    assert re.search(r"Every limit was met:\nsamples/s 3,1\d\d, at least 2,880 \(the baseline\)", text)


def test_sizes_of_the_machine_are_for_people():
    """No row of digits."""
    text = page.render([result(1)], ENVIRONMENTS, WHEN)
    assert re.search(r'\["host memory", "[\d.]+ GiB", "[\d.]+ GiB"\]', text)


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 60])
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False)])
def test_it_opens_without_an_error_and_fits(chromium, one_and_sixty, count, width, dark):
    """No console error, no request, nothing wider than the screen, charts drawn; light, dark, phone."""
    chromium.events.clear()
    chromium.open(one_and_sixty[count], width=width, dark=dark)
    assert [] == chromium.problems()
    assert count == chromium.evaluate("document.querySelectorAll('#overview tbody tr').length")
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    chromium.evaluate("location.hash = 'test-0'; new Promise(done => setTimeout(done, 50))")
    assert chromium.evaluate("document.querySelectorAll('#test-0 canvas').length") >= 3
    assert chromium.evaluate(
        "document.querySelector('#test-0 .environment .differs').textContent"
    ).startswith("driver")


@needs_browser
@pytest.mark.slow
def test_every_kind_of_chart_is_drawn(chromium, one_and_sixty):
    """Shares, step times, series and the with/without bars; each says in words what it shows."""
    chromium.open(one_and_sixty[60])
    chromium.evaluate("document.querySelector('#test-2').open = true")
    chromium.evaluate("new Promise(done => setTimeout(done, 50))")
    labels = chromium.evaluate(
        "[...document.querySelectorAll('#test-2 canvas')].map(c => c.getAttribute('aria-label'))"
    )
    for start in (
        "Where the step's time went: data wait",
        "Step times: ",
        "Over time: utilization and memory",
        "With",
    ):
        assert any(label.startswith(start) for label in labels), (start, labels)
    chromium.evaluate("location.hash = 'test-4'; new Promise(done => setTimeout(done, 50))")
    titles = chromium.evaluate("[...document.querySelectorAll('#test-4 figcaption')].map(c => c.textContent)")
    assert all("predicted" in title or "modelled" in title for title in titles), titles
    ink = "c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(value => value > 0)"
    assert chromium.evaluate(f"[...document.querySelectorAll('#test-2 canvas')].every({ink})")


@needs_browser
@pytest.mark.slow
def test_the_table_sorts_and_filters_by_keyboard(chromium, one_and_sixty):
    """A header is a button; the slash goes to the filter; the filter hides rows and tests."""
    chromium.open(one_and_sixty[60])
    first = "Number(document.querySelector('#overview tbody tr').cells[2].dataset.value)"
    chromium.evaluate("document.querySelectorAll('#overview thead button')[2].focus()")
    for expected in ("Math.min", "Math.max"):
        for kind in ("keyDown", "keyUp"):
            chromium.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key="Enter",
                code="Enter",
                text="\r",
                windowsVirtualKeyCode=13,
            )
        values = (
            "[...document.querySelectorAll('#overview tbody tr')].map(r => Number(r.cells[2].dataset.value))"
        )
        assert chromium.evaluate(first) == chromium.evaluate(f"{expected}(...{values})")
    chromium.call("Input.dispatchKeyEvent", type="keyDown", key="/", code="Slash", text="/")
    assert "filter" == chromium.evaluate("document.activeElement.id")
    chromium.call("Input.insertText", text="[17]")
    shown = (
        "[...document.querySelectorAll('#overview tbody tr, #tests > details')].filter(e => !e.hidden).length"
    )
    assert 2 == chromium.evaluate(shown)
    assert "1 of 60 readings" == chromium.evaluate("document.getElementById('shown').textContent")


@needs_browser
@pytest.mark.slow
def test_it_opens_in_less_than_two_seconds(chromium, one_and_sixty):
    """By the page's own clock, from navigation to drawn."""
    chromium.open(one_and_sixty[60])
    milliseconds = chromium.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    assert 0 < milliseconds < 2000
