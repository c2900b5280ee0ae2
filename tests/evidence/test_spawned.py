"""Pool processes that are spawned (`worker_pool_start_method`): each gets a copy of the app that
was pickled."""

from __future__ import annotations

import celery
import pytest
from celery import chord
from celery.exceptions import TimeoutError as TookTooLong

pytestmark = pytest.mark.skipif(
    celery.VERSION < (5, 7), reason="Celery before 5.7 has no worker_pool_start_method"
)


@pytest.mark.parametrize("without", ["", "copies"], ids=["here", "control"])
def test_a_chord_whose_last_part_is_killed_ends(worker, app, client, without):
    """install() was missing in the copy: when the process that publishes the body was killed, no
    other process published it."""
    worker(
        app="spawned",
        conf={"worker_pool_start_method": "spawn"},
        concurrency=1,
        env={"WITHOUT": without},
    )
    parts = [app.signature("spawned.part", (n,)) for n in (1, 2)]
    result = chord(parts, app=app)(app.signature("spawned.body"))
    if without:
        with pytest.raises(TookTooLong):
            result.get(timeout=15)
    else:
        assert result.get(timeout=60) == [1, 2]
    assert client.exists("spawned:died")
