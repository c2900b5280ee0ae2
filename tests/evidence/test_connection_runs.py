"""Connections break: what each pool's runs come to that Celery cancels, loses or leaves running."""

from __future__ import annotations

import re
import signal
from collections import Counter
from typing import Any

import celery
import pytest

from support.driver import SECOND_CHECK_S
from support.servers.faults import kill_connections
from support.waiting import always, eventually
from support.workers.load import Load
from support.workers.worker import Worker


def cancelled(worker: Worker, load: Load) -> Counter[str]:
    """Names of the jobs that Celery has cancelled, as its log says, each time."""
    ids = re.findall(r"Task shop\.hold\[([^]]+)\].* cannot be acknowledged after", worker.log())
    return Counter(load.ids[found] for found in ids)


def test_what_celery_cancels_at_a_connection_loss_is_requeued_once(make_fleet):
    """Threads cannot be cancelled: what runs there goes on, and must not be requeued."""
    pools = {"prefork": 2, "threads": 2, "gevent": 4}
    fleet = make_fleet(
        pools=pools, conf={"worker_cancel_long_running_tasks_on_connection_loss": True}
    )
    expected = [f"cancel-{pool}-held" for pool in ("prefork", "gevent")]
    with fleet.load("cancel") as load:

        def hit() -> bool:
            # Of a connection that is lost at a good moment a worker may not even learn.
            load.wait_progress(1)
            kill_connections(fleet.server.client())
            return all(fleet.ledger.runs().get(job, 0) > 1 for job in expected)

        eventually(hit, 60)
        account = load.settle()
    cuts = sum((cancelled(fleet.workers[p], load) for p in ("prefork", "gevent")), Counter())
    assert not account.lost, account
    # Fewer where it was cancelled before its first line, or again before its child had ended.
    more = {job: (runs, cuts[job]) for job, runs in account.doubled.items() if runs > 1 + cuts[job]}
    assert not more, f"runs and times it was cancelled: {more}"
    finishes = fleet.ledger.finishes()
    # The last cut may come when it has written its end and is not acked yet.
    assert all(len(finishes[job]) <= 2 for job in expected), "cut short, then run"
    # A claim that came behind the first look for lost replies is found by the second.
    eventually(fleet.at_rest, SECOND_CHECK_S + 20)


@pytest.mark.skipif(celery.VERSION < (5, 7), reason="before 5.7 no greenlet acks its own job")
@pytest.mark.parametrize("without", ["", "settling"])
def test_a_greenlet_that_has_ended_is_not_killed_while_it_acks(make_fleet, without):
    """Of two that were to be cancelled, one ended while the worker dealt with the other. The
    control: its job stays with the worker."""
    conf = {"worker_cancel_long_running_tasks_on_connection_loss": True}
    env = {"HAPPENS": "slow_acks", "WITHOUT": without}
    fleet = make_fleet(pools={"gevent": 2}, conf=conf, env=env)
    ledger, log = fleet.ledger, fleet.workers["gevent"].log
    for job in ("one", "two"):
        fleet.app.tasks["shop.hold"].apply_async((job,), queue="gevent")
    eventually(lambda: len(ledger.starts()) == 2)
    kill_connections(fleet.server.client())
    eventually(lambda: ledger.starts().get("note"))
    for job in ("one", "two"):
        ledger.release(job)
    eventually(lambda: ledger.starts().get("ack"))
    ledger.release("note")
    eventually(lambda: log().count("Terminating it instead") == 2)
    eventually(lambda: log().count("] Connected to") >= 2)
    ledger.release("ack")
    if without:
        always(lambda: bool(fleet.left()), during=5.0)
        return
    eventually(fleet.at_rest)
    assert sorted(ledger.runs()[job] for job in ("one", "two")) == [1, 2]


def test_greenlets_go_on_while_their_worker_waits_for_the_next_try(make_fleet):
    fleet = make_fleet(pools={"gevent": 2})
    fleet.app.tasks["shop.hold"].apply_async(("job",), queue="gevent")
    eventually(lambda: fleet.ledger.starts().get("job"))
    fleet.proxy.refuse()
    fleet.proxy.cut()
    worker = fleet.workers["gevent"]
    worker.wait_log("Trying again in 4.00 seconds")
    fleet.ledger.release("job")
    eventually(lambda: fleet.ledger.finishes().get("job"))
    assert "Trying again in 6.00 seconds" not in worker.log(), "it stood still in between"
    fleet.proxy.heal()
    eventually(lambda: not fleet.left(), message="it is acked")
    assert fleet.ledger.runs()["job"] == 1


OF_THE_CHILD = "could not be requeued or moved yet"
OF_EITHER = f"{OF_THE_CHILD}|Trying again in"


def test_a_child_that_is_lost_while_the_server_is_away_costs_its_job_no_more_than_that(make_fleet):
    fleet = make_fleet(pools={"prefork": 1})
    worker = fleet.workers["prefork"]
    for attempt in range(1, 9):
        job = f"job{attempt}"
        fleet.app.tasks["shop.hold"].apply_async((job,), queue="prefork")
        eventually(lambda job=job: fleet.ledger.starts().get(job))
        before = len(worker.log())
        # Asleep, it learns of both at once. Which comes first is not ours to say.
        worker.signal(signal.SIGSTOP)
        worker.kill9_child()
        fleet.proxy.refuse()
        fleet.proxy.cut()
        worker.signal(signal.SIGCONT)
        eventually(lambda before=before: re.search(OF_EITHER, worker.log()[before:]))
        in_time = OF_THE_CHILD in worker.log()
        fleet.proxy.heal()
        eventually(lambda job=job: fleet.ledger.runs()[job] == 2, message="it runs again")
        fleet.ledger.release(job)
        eventually(lambda: not fleet.left())
        assert fleet.ledger.runs()[job] == 2
        assert fleet.db.stat("recovered") == attempt
        if in_time:
            return
    pytest.fail("it never learned of its child before it connected again")


def test_a_worker_whose_children_have_died_at_once_connects_again(make_fleet):
    fleet = make_fleet(pools={"prefork": 4})
    worker = fleet.workers["prefork"]
    dead = worker.children()
    # Asleep, it learns of all of them in one turn of its loop.
    worker.signal(signal.SIGSTOP)
    for child in dead:
        child.kill()
    worker.signal(signal.SIGCONT)
    eventually(lambda: len(set(worker.children()) - set(dead)) == len(dead))
    kill_connections(fleet.server.client())
    worker.wait_log("Connection to broker lost")
    fleet.app.tasks["shop.note"].apply_async(("job",), queue="prefork")
    eventually(lambda: fleet.ledger.finishes().get("job"))
    assert fleet.ledger.runs()["job"] == 1


def test_a_job_that_came_too_late_to_its_child_outlasts_two_lost_connections(make_fleet):
    fleet = make_fleet(pools={"prefork": 1})
    worker = fleet.workers["prefork"]
    hold: Any = fleet.app.tasks["shop.hold"]
    [child] = worker.children()

    def publish(name: str) -> str:
        return str(hold.apply_async((name,), queue="prefork").id)

    def received(id: str, times: int) -> None:
        eventually(lambda: worker.log().count(f"[{id}] received") >= times)

    def lose_the_connection() -> None:
        before = worker.log().count("Connected to")
        kill_connections(fleet.server.client())
        eventually(lambda: worker.log().count("Connected to") > before)

    child.suspend()
    late = publish("late")
    received(late, 1)
    lose_the_connection()
    others = [publish(f"other{n}") for n in range(3)]
    for other in others:
        received(other, 1)
    # Its owner is heard each second: what was handed over may not begin after one and a half.
    always(worker.alive, during=2)
    child.resume()
    eventually(lambda: fleet.ledger.starts().get("other0"))
    lose_the_connection()
    names = ["late", *(f"other{n}" for n in range(3))]
    for name in names:
        fleet.ledger.release(name)
    eventually(lambda: set(fleet.ledger.finishes()) == set(names))
    eventually(fleet.at_rest)
    assert fleet.ledger.runs() == dict.fromkeys(names, 1)


@pytest.mark.parametrize("without", ["", "half_a_result"])
def test_a_result_that_was_read_in_part_is_read_on(make_fleet, without):
    """The connection is lost in between. The control: it is never acked."""
    env = {"HAPPENS": "slow_results", "WITHOUT": without}
    fleet = make_fleet(pools={"prefork": 1}, env=env)
    fleet.app.tasks["shop.fail"].apply_async(("x" * 20_000,), queue="prefork")
    eventually(lambda: fleet.ledger.starts().get("result"), message="a part of it is sent")
    kill_connections(fleet.server.client())
    worker = fleet.workers["prefork"]
    eventually(lambda: worker.log().count("Connected to") >= 2, message="it is back")
    fleet.app.tasks["shop.note"].apply_async(("next",), queue="prefork")
    fleet.ledger.release("result")
    if without:
        always(fleet.left, during=2)
        return
    eventually(lambda: fleet.ledger.finishes().get("next"))
    eventually(lambda: not fleet.left())
    assert fleet.ledger.runs()["x" * 20_000] == 1
