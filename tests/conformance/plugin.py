"""The pytest plugin of a conformance run: which transport, which share, what was the outcome.

kombu's tests name their broker `redis://...`; here that scheme means our transport, in this
process alone. It is set before kombu has resolved any.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import kombu
import pytest
from kombu.transport import TRANSPORT_ALIASES
from stock_only import rows_for

OURS = os.environ["CONFORMANCE_TRANSPORT"] == "ours"
if OURS:
    TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), "celery_superfetch:Transport"))
    TRANSPORT_ALIASES["sentinel"] = "celery_superfetch:SentinelTransport"


def pytest_configure(config: pytest.Config) -> None:
    for name in ("env(name): the broker a test of kombu's needs", "flaky(...): may be run again"):
        config.addinivalue_line("markers", name)


def pytest_sessionstart() -> None:
    """Neither half may test the other's transport by mistake."""
    module = kombu.Connection("redis://").get_transport_cls().__module__
    assert module == ("celery_superfetch.transport.transport" if OURS else "kombu.transport.redis")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    share, jobs = map(int, os.environ["CONFORMANCE_SHARE"].split("/"))
    items[:] = items[share::jobs]
    if not OURS:
        return
    for item in items:
        for row in rows_for(kombu.__version__):
            if row.matches(item.nodeid):
                item.add_marker(pytest.mark.xfail(strict=True, reason=row.reason))


_outcomes: dict[str, str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if hasattr(report, "wasxfail") and report.skipped:
        _outcomes[report.nodeid] = "failed as expected"
    elif report.when == "call" or report.outcome != "passed":
        _outcomes[report.nodeid] = report.outcome


def pytest_sessionfinish() -> None:
    Path(os.environ["CONFORMANCE_OUTCOMES"]).write_text(json.dumps(_outcomes))
