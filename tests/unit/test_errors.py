"""What the caller of a killed job gets survives every way in which Celery stores results."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime, timezone
from typing import Any

import pytest
from celery import Celery

from celery_superfetch import PoisonPill

FACTS: dict[str, Any] = {
    "reason": "pool child lost",
    "strikes": 2,
    "recoveries": 3,
    "owners": ["a|1|x", "b|2|y", "b|3|z"],
    "times": [1795238312, 1795238313.5, None],
    "dead_id": "0" * 40,
}


def check(pill: PoisonPill) -> None:
    assert type(pill) is PoisonPill
    assert str(pill) == "Job a was killed."
    assert repr(pill) == "PoisonPill('Job a was killed.')"
    assert (pill.reason, pill.strikes, pill.recoveries) == ("pool child lost", 2, 3)
    assert pill.owners == ("a|1|x", "b|2|y", "b|3|z")
    assert pill.hosts == ("a", "b", "b")
    assert pill.times == (
        datetime(2026, 11, 21, 5, 18, 32, tzinfo=timezone.utc),
        datetime(2026, 11, 21, 5, 18, 33, 500_000, tzinfo=timezone.utc),
        None,
    )
    assert pill.dead_id == "0" * 40


@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_a_poison_pill_survives_the_result_backend(serializer):
    app = Celery("shop", backend="cache+memory://", set_as_current=False)
    app.conf.update(result_serializer=serializer, accept_content=["json", "pickle"])
    pill = PoisonPill("Job a was killed.", FACTS)
    check(pill)
    app.backend.store_result(serializer, pill, "FAILURE")
    check(app.backend.get_task_meta(serializer)["result"])
    with pytest.raises(PoisonPill, match="was killed") as raised:
        app.AsyncResult(serializer).get(timeout=5)
    check(raised.value)


def test_a_caller_catches_the_first_one_by_its_public_name(tmp_path):
    """In a process that has only imported the package, as a producer without `install()` does."""
    url = f"file://{tmp_path}"
    Celery("shop", backend=url, set_as_current=False).backend.store_result(
        "1", PoisonPill("Job a was killed.", FACTS), "FAILURE"
    )
    caller = (
        "import celery, celery_superfetch\n"
        f"result = celery.Celery('shop', backend={url!r}).AsyncResult('1')\n"
        "try:\n"
        "    result.get(timeout=5)\n"
        "except celery_superfetch.PoisonPill as pill:\n"
        "    print(pill.strikes)\n"
    )
    done = subprocess.run([sys.executable, "-c", caller], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("2\n", "")


def test_one_that_says_nothing_has_attributes_all_the_same():
    pill = PoisonPill("killed by an earlier version")
    assert (str(pill), pill.reason, pill.strikes) == ("killed by an earlier version", "", 0)
    assert pill.owners == pill.hosts == pill.times == ()
