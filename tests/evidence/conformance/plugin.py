"""The pytest plugin of a conformance run: which share, which must fail, what was the outcome."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from stock_only import ANNOUNCED, rows_for

SUITE, VERSION = os.environ["CONFORMANCE_SUITE"], os.environ["CONFORMANCE_VERSION"]
OURS = os.environ["CONFORMANCE_TRANSPORT"] == "ours"


def pytest_configure(config: pytest.Config) -> None:
    for name in ("env(name): the broker a test of kombu's needs", "flaky(...): may be run again"):
        config.addinivalue_line("markers", name)


# After `-k` has said which are left out.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    share, jobs = map(int, os.environ["CONFORMANCE_SHARE"].split("/"))
    items[:] = items[:: int(os.environ["CONFORMANCE_EVERY"])][share::jobs]
    if not OURS:
        return
    for item in items:
        for row in rows_for(SUITE, VERSION):
            if row.matches(item.nodeid):
                item.add_marker(pytest.mark.xfail(strict=True, reason=row.reason))


_outcomes: dict[str, str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if hasattr(report, "wasxfail"):
        _outcomes[report.nodeid] = ANNOUNCED
    elif report.when == "call" or report.outcome != "passed":
        _outcomes[report.nodeid] = report.outcome


def pytest_runtest_logfinish() -> None:
    """At once: a run that hangs is ended, and says what it has done."""
    Path(os.environ["CONFORMANCE_OUTCOMES"]).write_text(json.dumps(_outcomes))
