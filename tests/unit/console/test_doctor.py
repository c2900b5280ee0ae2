"""What the doctor makes of clocks, and of owners side by side."""

from __future__ import annotations

from typing import Any

import pytest

from celery_superfetch.console.doctor import CLOCK_SKEW_S, of_clocks, of_versions
from celery_superfetch.model.version import __version__


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (1000.0, 1000.1, None),
        (1000.0 - CLOCK_SKEW_S, 1000.1 - CLOCK_SKEW_S, None),
        (990.0, 1010.0, None),  # an answer that took 20 s says no more than that
        (1060.0, 1060.1, "59 s ahead of"),
        (939.9, 940.0, "60 s behind"),
        (982.0, 992.5, "7.5 s behind"),
    ],
)
def test_clocks(before, after, said):
    found = list(of_clocks(before, 1000.04 if said and "ahead" in said else 1000.0, after))
    assert [one.code for one in found] == (["clock-skew"] if said else [])
    if said:
        assert f"the clock of this host is {said} the server's" in found[0].text


def owner(node: str, **other: Any) -> dict[str, Any]:
    counts = {"running": 0, "reserved": 0, "in_flight": 0, **other}
    known = {"owner": node, "node": node, "version": __version__, "verdict": "alive"}
    return {**known, "state": "running", "queues": ["mail"], **counts}


def test_versions():
    assert list(of_versions([owner("a"), owner("b")])) == []
    [found] = of_versions([owner("a"), owner("b", version="0.0.9"), owner("c", version="")])
    assert found.code == "versions"
    assert f"0.0.9 (1), {__version__} (1), of unknown version (1)" in found.text
