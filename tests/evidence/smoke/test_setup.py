"""A setup of pytest-celery as a user would write one: what is promised holds on such nodes, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from support.servers.database import Database
from support.servers.ledger import Ledger
from support.waiting import always, eventually

pytest.importorskip("pytest_celery", reason="needs the extra `smoke`")

STRIKES = 2


@pytest.fixture
def ledger(celery_setup: Any) -> Iterator[Ledger]:
    book = Ledger(celery_setup.backend.config()["host_url"])
    yield book
    book.close()


@pytest.fixture
def db(celery_setup: Any) -> Iterator[Database]:
    with redis.Redis.from_url(celery_setup.broker.config()["host_url"]) as client:
        yield Database(client)


@pytest.fixture
def send(celery_setup: Any) -> Callable[..., Any]:
    """`send("hold", "a")`: by a stock producer, to where the broker is now (Docker moves ports)."""
    app = celery_setup.app

    def publish(task: str, *args: Any) -> Any:
        with app.connection_for_write() as connection:
            return app.send_task(f"shop.{task}", args, connection=connection)

    return publish


def running(ledger: Ledger, job: str) -> bool:
    return ledger.runs().get(job, 0) > len(ledger.finishes().get(job, []))


def exited(node: Any) -> bool:
    node.container.reload()
    return bool(node.container.status == "exited")


def test_it_is_ready_gives_results_and_stops_warmly(celery_setup, send, ledger, db):
    assert celery_setup.ready(ping=True, control=True, docker=True)
    assert send("add", 2, 3).get(timeout=30) == 5
    (owner,) = db.owners()
    assert db.fact(owner, "app") == "shop", "the workers fetch by our transport"

    held = send("hold", "held")
    eventually(lambda: running(ledger, "held"))
    celery_setup.worker.kill(signal="SIGTERM")
    celery_setup.worker.assert_log_exists("Warm shutdown (MainProcess)")
    ledger.release()
    assert held.get(timeout=30) == "held"
    eventually(lambda: exited(celery_setup.worker))
    assert not db.owners()
    assert not db.private_lists()
    assert db.waiting() == []
    assert ledger.runs() == {"held": 1}


def test_a_killed_worker_that_comes_back_runs_its_job_once_more(celery_setup, send, ledger, db):
    result = send("hold", "held")
    eventually(lambda: running(ledger, "held"))
    celery_setup.worker.kill()
    eventually(lambda: exited(celery_setup.worker))
    celery_setup.worker.restart()
    eventually(lambda: ledger.runs() == {"held": 2}, 60)
    ledger.release()
    assert result.get(timeout=30) == "held"
    assert db.stat("recovered") == 1
    eventually(lambda: not db.private_lists())
    always(lambda: ledger.runs() == {"held": 2}, during=1)


@pytest.mark.parametrize("superfetch", [False])
def test_the_control_a_stock_worker_that_comes_back_leaves_its_job_where_it_was(
    celery_setup, send, ledger, db
):
    send("hold", "held")
    eventually(lambda: running(ledger, "held"))
    celery_setup.worker.kill()
    celery_setup.worker.restart()
    assert send("add", 2, 3).get(timeout=60) == 5, "it works again"
    always(lambda: ledger.runs() == {"held": 1}, during=3)
    assert db.client.hlen("unacked") == 1


def test_a_restarted_broker_costs_no_job_and_no_second_run(celery_setup, send, ledger):
    result = send("hold", "held")
    eventually(lambda: running(ledger, "held"))
    celery_setup.broker.restart(force=True)
    ledger.release("held")
    assert result.get(timeout=30) == "held"
    assert eventually(lambda: send("add", 2, 3)).get(timeout=60) == 5
    assert ledger.runs() == {"held": 1}


def test_a_paused_worker_leaves_the_queue_alone_and_goes_on_under_its_name(
    celery_setup, send, ledger, db
):
    result = send("hold", "held")
    eventually(lambda: running(ledger, "held"))
    owners = db.owners()
    celery_setup.worker.container.pause()
    silent = db.heard(owners[0])
    waiting = [send("note", f"n{number}") for number in range(3)]
    always(lambda: ledger.runs() == {"held": 1}, during=2)
    assert db.heard(owners[0]) == silent, "two heartbeats are missing"
    celery_setup.worker.container.unpause()
    ledger.release()
    assert [one.get(timeout=30) for one in (result, *waiting)] == ["held", "n0", "n1", "n2"]
    assert ledger.runs() == {"held": 1, "n0": 1, "n1": 1, "n2": 1}
    assert db.owners() == owners


@pytest.mark.parametrize("options", [{"strike_limit": STRIKES}])
def test_a_poison_pill_ends_in_the_dead_set(celery_setup, send, ledger, db):
    with pytest.raises(Exception, match="was moved to the dead set"):
        send("kill_child", "pill").get(timeout=60)
    assert ledger.runs() == {"pill": STRIKES}
    (dead,) = db.dead()
    assert dead["task"] == "shop.kill_child"
    assert send("add", 2, 3).get(timeout=30) == 5, "the worker goes on"
