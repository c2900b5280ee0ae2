"""A worker is told to stop with jobs, and who answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from celery_superfetch.app.kill import _stop

NODE = "celery@web-1"


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_workers_of_one_name_the_one_that_has_the_job_is_heard(first: int) -> None:
    """Celery's own name for a worker is that of its host, whichever app it is of. Celery waits for
    one answer of each name, and the other's said that nothing was done."""
    answers = [{"jobs": {"digest": ""}}, {"error": "this worker is not owner a any more"}]
    replies = [{NODE: answers[first]}, {NODE: answers[1 - first]}]

    def broadcast(*_: Any, limit: int, **__: Any) -> list[Any]:
        return replies[:limit]

    app = cast("Any", SimpleNamespace(control=SimpleNamespace(broadcast=broadcast)))
    facts = cast("Any", SimpleNamespace(owner="a", node=NODE, version="1"))
    assert _stop(app, facts, 2, ["digest"]) == {"digest": ""}
