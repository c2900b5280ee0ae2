"""Charts as paths and as words."""

from __future__ import annotations

import re
from typing import Any

import pytest

from celery_superfetch.console.charts import SERIES
from celery_superfetch.console.commands.charts import bars
from celery_superfetch.console.web.drawing import CHART_HEIGHT, bars_of, drawings_of, known_of


def document(counts: list[int | None]) -> dict[str, Any]:
    times = [f"2026-01-02T03:{at:02}:00.000+00:00" for at in range(len(counts))]
    return {"times": times, "minutes": 1}


def drawn(event: str, counts: list[int | None]) -> Any:
    known = sum(count or 0 for count in counts)
    series = {**dict.fromkeys(SERIES, [0] * len(counts)), event: counts}
    sums = {**dict.fromkeys(SERIES, 0), event: known}
    found = drawings_of({**document(counts), "series": series, "sums": sums})
    return {drawing.event: drawing for drawing in found}[event]


def test_each_count_has_a_bar_as_high_as_its_share():
    heights = [float(height) for height in re.findall(r"v-([\d.]+)", bars_of([0, 1, 2, 4]))]
    assert heights == [CHART_HEIGHT / 4, CHART_HEIGHT / 2, CHART_HEIGHT]


def test_the_smallest_count_is_seen_beside_the_greatest():
    [small, _] = re.findall(r"v-([\d.]+)", bars_of([1, 100_000]))
    assert float(small) >= 4


@pytest.mark.parametrize("counts", [[], [0, 0], [None]])
def test_nothing_has_no_bar(counts):
    assert bars_of(counts) == ""


def test_a_gap_in_the_base_line_says_that_nothing_is_known():
    assert known_of([0, None, 3]) == f"M0 {CHART_HEIGHT}h1M2 {CHART_HEIGHT}h1"


def test_words_say_what_the_bars_do():
    text = drawn("failed", [0, 3, 9, 1]).text
    assert (
        text == "From 03:00 to 03:03 UTC, by a minute: 13 in all, at most 9 in a minute, at 03:02."
    )
    assert drawn("failed", [0, 0]).text.endswith(": none.")
    assert drawn("waiting", [None, None]).text.endswith(": nothing is known.")
    assert "in all" not in drawn("waiting", [None, 4]).text


def test_bad_news_has_the_colour_of_bad_news_and_none_has_not():
    assert drawn("killed", [0, 1]).mood == "critical"
    assert drawn("killed", [0, 0]).mood == "note"
    assert drawn("succeeded", [0, 1]).mood == "note"


def test_a_line_of_characters_has_one_for_each_count_or_group():
    assert bars([0, 1, 8, None]) in ("_▁█?", "_.#?")
    assert len(bars([1] * 61)) == 61
    assert len(bars([1] * 145)) <= 61
    assert bars([None] * 3) == "???"
    assert {*bars([0] * 3)} == {"_"}
