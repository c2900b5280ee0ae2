"""An exception, or a thread that cannot start, ends a call of a plain consumer in the middle: the
next calls go on, and no job stays behind."""

from __future__ import annotations

from time import sleep
from typing import Any

import pytest

from celery_superfetch.model.job import Counters
from celery_superfetch.owner import owner as owner_module
from celery_superfetch.owner.heartbeat_thread import HeartbeatThread
from celery_superfetch.owner.late_leave import LateLeave
from celery_superfetch.store.redis.connections import NotServed
from celery_superfetch.transport.fetch.backlog import Landed
from support.interruption import Late, interrupted
from support.waiting import eventually
from support.workers.bench import payload
from support.workers.inbox import Inbox

QUICK = {"heartbeat_interval": 1}


def late(*_: Any, **__: Any) -> Any:
    raise Late


def test_a_process_registers_again_after_an_interrupted_leave(url, bench, monkeypatch):
    """Each later channel raised that the heartbeat thread has stopped."""
    inbox = Inbox(url)
    inbox.turn()
    owner = inbox.channel.owner
    leave = owner.heartbeat_session.leave
    with monkeypatch.context() as patch:
        patch.setattr(owner.heartbeat_session, "leave", lambda t: (sleep(1), leave(t))[1])
        with interrupted(0.3):
            inbox.channel.close()
        eventually(lambda: not owner.name)
    bench.push("mail", payload(1))
    with Inbox(url) as other:
        assert other.channel.owner is owner
        other.receive(1)
        other.ack_all()
        assert set(bench.registry.owners()) == {owner.name}


@pytest.fixture
def refused(fresh_server):
    """A consumer that has a job, and the client of its server, which refuses writes from now on."""
    server = fresh_server()
    client = server.client()
    client.lpush("mail", payload(1))
    inbox = Inbox(server.url())
    inbox.receive(1)
    client.config_set("min-replicas-to-write", 1)
    return inbox, client


def test_a_requeue_that_waits_is_sent_after_an_interrupted_close(refused, monkeypatch):
    """The jobs stayed with the closed consumer, and its heartbeats, until its process ended."""
    inbox, client = refused
    owner = inbox.channel.owner
    with monkeypatch.context() as patch:
        patch.setattr(owner, "_settle", lambda: sleep(1))
        with interrupted(0.3):
            inbox.channel.close()
    client.config_set("min-replicas-to-write", 0)
    eventually(lambda: client.lrange("mail", 0, -1) == [payload(1)], 15)
    eventually(lambda: not owner.name)


@pytest.mark.parametrize(
    ("text", "is_logged"),
    [("can't start new thread", True), ("can't create new thread at interpreter shutdown", False)],
)
def test_a_process_that_cannot_leave_for_lack_of_a_thread_logs_that(
    refused, monkeypatch, caplog, text, is_logged
):
    """It was registered, with its jobs, until it ended, and no log said so. The control: at the
    exit of the process it leaves once more."""

    def fail(*_: Any) -> None:
        raise RuntimeError(text)

    inbox, client = refused
    owner = inbox.channel.owner
    with monkeypatch.context() as patch:
        patch.setattr(LateLeave, "start", fail)
        inbox.channel.close()
    logged = "stays registered although its last consumer is closed" in caplog.text
    assert logged == is_logged
    client.config_set("min-replicas-to-write", 0)
    owner.leave_later()
    eventually(lambda: not owner.name, 15)


@pytest.mark.parametrize("fails", ["start", "init"])
def test_heartbeats_begin_although_their_thread_could_not_start_at_first(
    url, bench, monkeypatch, fails
):
    """The consumer claimed without heartbeats: a peer would recover what it runs."""

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't start new thread")

    with Inbox(url, **QUICK) as inbox:
        with monkeypatch.context() as patch:
            if fails == "start":
                patch.setattr(HeartbeatThread, "start", fail)
            else:
                patch.setattr(owner_module, "HeartbeatThread", fail)
            with pytest.raises(RuntimeError):
                inbox.turn()
        bench.push("mail", payload(1))
        inbox.receive(1)
        name = inbox.channel.owner.name
        before = bench.registry.owners()[name]
        eventually(lambda: inbox.turn() or bench.registry.owners()[name] > before, 5)
        inbox.ack_all()


def test_one_heartbeat_thread_is_left_if_an_exception_interrupts_its_start(url, monkeypatch):
    """Two threads used one session at once, until the process ended."""
    start, started = HeartbeatThread.start, []

    def start_and_fail(thread: HeartbeatThread) -> None:
        start(thread)
        started.append(thread)
        raise Late

    with Inbox(url, **QUICK) as inbox:
        with monkeypatch.context() as patch:
            patch.setattr(HeartbeatThread, "start", start_and_fail)
            with pytest.raises(Late):
                inbox.turn()
        inbox.turn()
        [first] = started
        eventually(lambda: not first.is_alive(), 5)
        assert inbox.channel.owner._heartbeat_thread.is_alive()


@pytest.mark.parametrize("takes_effect", [False, True])
def test_a_job_comes_with_the_next_get_if_an_exception_interrupts_its_delivery(
    url, bench, monkeypatch, takes_effect
):
    """If its delivery took effect, it stayed claimed until the process ended."""
    bench.push("mail", payload(1))
    with Inbox(url, consume=False) as inbox:
        leases = inbox.channel.owner.leases
        deliver = leases.deliver

        def deliver_and_fail(lease: Any) -> None:
            if takes_effect:
                deliver(lease)
            raise Late

        with monkeypatch.context() as patch:
            patch.setattr(leases, "deliver", deliver_and_fail)
            with pytest.raises(Late):
                inbox.channel.basic_get("mail")
        assert inbox.channel.basic_get("mail").headers["id"] == "1"
        assert len(bench.held()) == 1


def test_a_job_is_requeued_if_an_exception_interrupts_the_end_of_its_claim(url, bench, monkeypatch):
    bench.push("mail", payload(1))
    with Inbox(url, consume=False) as inbox:
        with monkeypatch.context() as patch:
            patch.setattr(inbox.channel.owner.private_lists, "read_claims", late)
            with pytest.raises(Late):
                inbox.channel.basic_get("mail")
        assert inbox.channel.basic_get("mail").headers["id"] == "1"
        assert len(bench.held()) == 1


def test_a_suspect_is_requeued_if_an_exception_interrupts_the_end_of_its_claim(
    url, bench, monkeypatch
):
    with Inbox(url, **QUICK) as inbox:
        inbox.settle_in()
        with monkeypatch.context() as patch:
            patch.setattr(Counters, "read", late)
            bench.client.lpush(bench.keys.probation("mail"), payload(1))
            bench.client.sadd(bench.keys.on_probation, "mail")
            with pytest.raises(Late):
                eventually(inbox.turn, 10)
        inbox.receive(1)
        assert inbox.ids() == ["1"]
        assert len(bench.held()) == 1
        inbox.ack_all()


def test_a_job_that_had_landed_before_an_interrupted_cancel_is_requeued(url, bench):
    """Its claim raised KeyError out of `drain_events`."""
    with Inbox(url, "mail", "slow") as inbox:
        inbox.settle_in()
        owner = inbox.channel.owner
        inbox.consumer.cancel_by_queue("mail")
        bench.land(owner.name, "mail", payload(1))
        landed = Landed(owner.name, "mail", payload(1))
        inbox.channel.fetch.backlog.landed.append(landed)
        inbox.turn()
        assert bench.queue() == [payload(1)]
        bench.push("slow", payload(2))
        inbox.receive(1)
        assert inbox.ids() == ["2"]
        inbox.ack_all()


def test_the_reads_on_a_paused_queue_end_although_their_server_moved_at_first(
    url, bench, monkeypatch
):
    with Inbox(url, **QUICK) as inbox:
        eventually(lambda: inbox.turn() or inbox.channel.fetch.reads.armed)
        reads = inbox.channel.fetch.reads
        leave, moves = reads.leave_lists, [NotServed("moved")]

        def leave_lists(lists: Any) -> None:
            if moves:
                raise moves.pop()
            leave(lists)

        monkeypatch.setattr(reads, "leave_lists", leave_lists)
        bench.paused.pause("mail", "ann")
        eventually(lambda: inbox.turn() or not moves, 10)
        eventually(lambda: inbox.turn() or not reads.armed, 5)


@pytest.mark.parametrize("fails", ["start", "try"])
def test_the_thread_that_leaves_later_survives_an_error(fresh_server, monkeypatch, fails, caplog):
    """Python 3.12 and later start no thread while the interpreter exits."""
    server = fresh_server()
    client = server.client()
    client.lpush("mail", payload(1))
    inbox = Inbox(server.url(), prefetch=1)
    inbox.receive(1)
    owner, errors = inbox.channel.owner, [RuntimeError("can't create new thread")]

    def fail_once(act: Any) -> Any:
        def called(*args: Any) -> Any:
            if errors:
                raise errors.pop()
            return act(*args)

        return called

    client.config_set("min-replicas-to-write", 1)
    with monkeypatch.context() as patch:
        if fails == "start":
            patch.setattr(LateLeave, "start", fail_once(LateLeave.start))
        else:
            patch.setattr(owner, "_try_to_leave", fail_once(owner._try_to_leave))
        inbox.close()
        client.config_set("min-replicas-to-write", 0)
        if fails == "start":
            owner.leave_for_good()
        else:
            eventually(lambda: not owner.name, 15)
            assert "could not be requeued yet" in caplog.text
    assert client.lrange("mail", 0, -1) == [payload(1)]
    assert not errors
