"""A lost connection takes no time limit from a job that runs."""

from __future__ import annotations

import celery
import pytest
import redis
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded

from support.servers.faults import kill_connections
from support.waiting import always, eventually
from support.workers.worker import Worker

#: Seconds of a limit: the worker must have lost its connection, and be back, in these.
LIMIT = 6.0

LOST = "Connection to broker lost"  # Celery's words

KEEPS_TIMERS = celery.VERSION >= (5, 7)


@pytest.mark.parametrize(
    ("limit", "error", "losses"),
    [
        ("time_limit", TimeLimitExceeded, 1),
        ("time_limit", TimeLimitExceeded, 2),
        ("soft_time_limit", SoftTimeLimitExceeded, 1),
    ],
)
def test_a_time_limit_outlives_a_lost_connection(
    worker, shop, client, ledger, db, limit, error, losses
):
    one = worker(concurrency=1)
    result = shop.hold.apply_async(("held",), **{limit: LIMIT})
    eventually(lambda: ledger.starts().get("held"))
    for loss in range(1, losses + 1):
        kill_connections(client)
        eventually(lambda loss=loss: one.log().count(LOST) >= loss)
    with pytest.raises(error):
        result.get(timeout=LIMIT + 10)
    shop.note.delay("next")
    eventually(lambda: "next" in ledger.finishes(), message="its slot is free")
    assert ledger.runs() == {"held": 1, "next": 1}
    eventually(lambda: not db.private_lists())


def test_after_its_soft_limit_a_job_meets_its_hard_one_and_no_second_soft_one(
    worker, app, client, ledger, db
):
    """The task hangs in its cleanup when the connection is lost."""
    one = worker(app="features", concurrency=1)
    limits = {"soft_time_limit": 2.0, "time_limit": 2 + LIMIT}
    result = app.send_task("features.cleans_up", ("held",), **limits)
    eventually(lambda: "cleanup" in ledger.starts())
    kill_connections(client)
    eventually(lambda: LOST in one.log())
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=LIMIT + 10)
    assert ledger.runs() == {"held": 1, "cleanup": 1}
    assert one.log().count("Soft time limit") == 1
    eventually(lambda: not db.private_lists())


def test_two_losses_before_the_loop_runs_again_make_no_second_soft_limit(
    worker, app, client, ledger
):
    """Celery 5.6 drops timers only when the loop has run. The second loss comes in the second that
    mingle takes: the job then has two sets of timers."""
    one = worker(app="features", concurrency=1, neighbours=True)
    limits = {"soft_time_limit": LIMIT, "time_limit": 2 * LIMIT}
    result = app.send_task("features.cleans_up", ("held",), **limits)
    eventually(lambda: "held" in ledger.starts())
    lose_twice(one, client)
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=2 * LIMIT + 10)
    assert ledger.runs() == {"held": 1, "cleanup": 1}
    assert one.log().count("Soft time limit") == 1


def test_a_warm_shutdown_after_its_soft_limit_makes_no_second_one(worker, app, ledger):
    """While the worker waits for the job, billiard checks its limits from the beginning."""
    one = worker(app="features", concurrency=1)
    limits = {"soft_time_limit": 1.0, "time_limit": 1 + LIMIT}
    app.send_task("features.cleans_up", ("held",), **limits)
    eventually(lambda: "cleanup" in ledger.starts())
    one.stop()
    assert one.log().count("Soft time limit") == 1
    assert "Hard time limit" in one.log()


def lose_twice(one: Worker, client: redis.Redis) -> None:
    """Lose the connection, and once more while mingle waits for answers."""
    kill_connections(client)
    eventually(lambda: one.log().count("mingle: searching for neighbors") == 2)

    def is_lost_again() -> bool:
        if one.log().count(LOST) >= 2:
            return True
        # A connection that is killed before its next command is opened again without a loss.
        kill_connections(client)
        return False

    eventually(is_lost_again, every=0.2)


@pytest.mark.skipif(KEEPS_TIMERS, reason="Celery 5.7 keeps the timers")
def test_the_control_without_it_a_hung_job_keeps_its_slot(worker, shop, client, ledger):
    one = worker(concurrency=1, env={"WITHOUT": "time_limits"})
    result = shop.hold.apply_async(("held",), time_limit=LIMIT)
    eventually(lambda: ledger.starts().get("held"))
    kill_connections(client)
    eventually(lambda: LOST in one.log())
    always(lambda: not result.ready(), during=LIMIT + 3)
    ledger.release()
