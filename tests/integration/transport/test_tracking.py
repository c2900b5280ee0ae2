"""More lists than blocking reads: the server reports what comes to the others, or they are looked
at."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pytest
import redis

from celery_superfetch.model.config import Config
from celery_superfetch.model.owner_rank import MOST_READS, OwnerRank
from celery_superfetch.owner.owner import Owner
from celery_superfetch.transport.fetch import blocking_reads as blocking
from celery_superfetch.transport.fetch.blocking_reads import BLOCK_REFUSED_S, BlockingReads
from celery_superfetch.transport.fetch.fetch_loop import AT_ONCE, POLL_INTERVAL
from support.servers.commands import blocked, calls, looked
from support.servers.server import Server
from support.waiting import always, eventually
from support.workers.inbox import Inbox, publish

QUEUES = [f"mail-{number:02}" for number in range(20)]
#: No connection waits on its lists.
LAST = QUEUES[-1]
#: Of a fleet where many wait: lists without a read are looked at.
MANY = OwnerRank(0, 40, 40)
#: What a user needs for all but being told.
UNTOLD = ("on", "nopass", "~*", "&*", "+@all", "-client", "+client|id", "+client|unblock")


@pytest.fixture
def server(fresh_server: Any) -> Server:
    """One of our own: what is done there is counted."""
    return fresh_server()


def waits(inbox: Inbox) -> Inbox:
    """Turn until the lists were found empty, one and all."""
    told = inbox.channel.fetch.reads

    def settled() -> bool:
        inbox.turn()
        return len(told._tracker.empty) == len(inbox.channel.lists.names) - MOST_READS

    eventually(settled, message="every list is waited on, or tracked")
    return inbox


@pytest.fixture
def inbox(server: Server) -> Iterator[Inbox]:
    with Inbox(server.url(), *QUEUES) as made:
        yield waits(made)


def lists_of(reads: BlockingReads) -> set[str]:
    return {read.queue_list for read in reads._reads}


def kill(server: Server, connection: Any) -> None:
    name = connection._connection._sock.getsockname()
    server.client().client_kill_filter(addr=f"{name[0]}:{name[1]}")


def test_a_job_for_any_of_many_queues_is_told_of(inbox, server):
    for number, queue in enumerate(QUEUES, 1):
        for priority in (0, 9):
            publish(server.url(), queue, [queue, priority], priority=priority)
        inbox.receive(2 * number)
    assert sorted(map(tuple, inbox.said())) == sorted((q, p) for q in QUEUES for p in (0, 9))


def test_nobody_looks_while_nothing_comes(inbox, server):
    before = looked(server.client())
    inbox.turn(3 * POLL_INTERVAL)
    assert looked(server.client()) == before


def test_the_control_a_server_that_may_not_tell_is_looked_at(server, caplog):
    server.client().execute_command("ACL", "SETUSER", "untold", *UNTOLD)
    url = server.url().replace("redis://", "redis://untold:x@")
    with caplog.at_level(logging.WARNING), Inbox(url, *QUEUES) as inbox:
        inbox.settle_in()
        before = calls(server.client(), "exists")
        eventually(lambda: inbox.turn(POLL_INTERVAL) or calls(server.client(), "exists") > before)
        publish(server.url(), LAST, "late")
        assert inbox.receive(1) == ["late"]
    said = [r.getMessage() for r in caplog.records if "CLIENT TRACKING" in r.getMessage()]
    assert len(said) == 1
    assert "checked once a second" in said[0]


def test_a_connection_that_is_lost_is_replaced(inbox, server):
    told = inbox.channel.fetch.reads
    lost = told._tracker
    kill(server, lost.connection)
    eventually(lambda: inbox.turn() or told._tracker not in (lost, None))
    publish(server.url(), LAST, "after")
    assert inbox.receive(1) == ["after"]


def test_a_connection_that_says_nothing_is_replaced(inbox, monkeypatch, caplog):
    """A firewall forgot it: no report comes, and no reply either."""
    told = inbox.channel.fetch.reads
    deaf = told._tracker
    told.poller.unwatch(deaf.fd)
    monkeypatch.setattr(blocking, "READ_OVERDUE_S", 0.5)
    deaf._due = 0.0
    # Without a change it is checked once a second what to wait on.
    eventually(lambda: inbox.turn() or deaf.connection.waits_since, message="it asks again")
    deaf.connection._connection.read_response()  # the reply that never came
    eventually(lambda: inbox.turn() or told._tracker not in (deaf, None))
    assert "(key tracking): it is replaced" in caplog.text


def test_after_a_flush_the_next_job_is_told_of(inbox, server):
    server.client().flushall()
    publish(server.url(), LAST, "anew")
    assert inbox.receive(1) == ["anew"]


def test_a_list_that_cannot_be_claimed_from_costs_one_look_a_second(inbox, server):
    server.client().hset(LAST, "not", "a list")
    before = looked(server.client())
    eventually(lambda: inbox.turn(POLL_INTERVAL) or looked(server.client()) > before)
    before = looked(server.client())
    for _ in range(3):
        inbox.turn(POLL_INTERVAL)
    each = len(inbox.channel.lists.names)
    assert looked(server.client()) - before <= 5 * each
    publish(server.url(), QUEUES[-2], "others")
    assert inbox.receive(1) == ["others"]


def test_a_list_to_which_something_came_gets_the_next_free_read(server, monkeypatch):
    """One that is told of wakes everybody, and one that is waited on only one."""
    monkeypatch.setattr(blocking, "BLOCK_TIMEOUT", 1)
    with waits(Inbox(server.url(), *QUEUES)) as inbox:
        reads = inbox.channel.fetch.reads
        assert LAST not in lists_of(reads)
        opened = len(server.client().client_list())
        publish(server.url(), LAST, "first")
        inbox.receive(1)
        eventually(lambda: inbox.turn() or LAST in lists_of(reads))
        assert len(lists_of(reads)) == MOST_READS
        assert len(server.client().client_list()) <= opened + 1, "the read moved"
        publish(server.url(), LAST, "second")
        assert inbox.receive(2) == ["first", "second"]


def test_over_its_memory_limit_the_server_is_asked_to_block_on_a_few_at_a_time(server):
    server.client().config_set("maxmemory", "1mb")
    with Inbox(server.url(), *QUEUES) as inbox:
        began = monotonic()
        while monotonic() < began + 2 * BLOCK_REFUSED_S:
            inbox.turn()
        tries = (monotonic() - began) / BLOCK_REFUSED_S + 1
        stats = server.client().info("commandstats")["cmdstat_blmove"]
        assert 0 < stats["rejected_calls"] + stats["failed_calls"] <= MOST_READS * tries


# -- where a job ends all waits


def test_with_a_prefetch_of_one_a_single_read_waits_where_something_came_last(server):
    """A job would call off all others, and have them begin anew."""
    with Inbox(server.url(), "mail", "post", prefetch=1) as inbox:
        reads = inbox.channel.fetch.reads
        for number, (queue, priority) in enumerate([("post", 9), ("mail", 3), ("post", 0)], 1):
            eventually(lambda: inbox.turn() or blocked(server.client()) == 1)
            publish(server.url(), queue, number, priority=priority)
            inbox.receive(number)
            inbox.ack_all()
            [came] = {message.delivery_info["routing_key"] for message in inbox.messages[-1:]}
            assert came == queue
            eventually(lambda: inbox.turn() or reads.armed)
            assert [read.queue_list for read in reads.armed] == [
                queue + (f"\x06\x16{priority}" if priority else "")
            ]
        assert inbox.said() == [1, 2, 3]


def test_where_the_server_may_not_tell_a_single_read_waits_and_the_others_are_looked_at(server):
    server.client().execute_command("ACL", "SETUSER", "uninformed", *UNTOLD)
    url = server.url().replace("redis://", "redis://uninformed:x@")
    with Inbox(url, "mail", "post", prefetch=1) as inbox:
        eventually(lambda: inbox.turn() or blocked(server.client()) == 1)
        before = calls(server.client(), "exists")
        eventually(lambda: inbox.turn() or calls(server.client(), "exists") >= before + 3)
        publish(server.url(), "post", "last", priority=9)
        assert inbox.receive(1) == ["last"]


def test_what_came_alone_only_gets_a_name_and_what_came_at_once_is_claimed(server):
    with Inbox(server.url(), prefetch=64) as inbox:
        eventually(lambda: inbox.turn() or blocked(server.client()) == 4)
        always(lambda: inbox.turn() or True, during=2 * AT_ONCE)
        before = looked(server.client())
        publish(server.url(), "mail", "alone")
        inbox.receive(1)
        eventually(lambda: inbox.turn() or blocked(server.client()) == 4)
        assert looked(server.client()) == before + 1, "where it landed, and in no queue"
        publish(server.url(), "mail", *range(40))
        inbox.receive(41)
        assert looked(server.client()) > before + 1
        assert 0 < calls(server.client(), "evalsha") < 20, "a claim for each job would be 40"


# -- what is told, and when


class Loop:
    """Calls nobody: the test decides who reads first."""

    def watch(self, fd: int, on_readable: Callable[[], bool]) -> None:
        pass

    def unwatch(self, fd: int) -> None:
        pass


@pytest.fixture
def told(server: Server) -> Iterator[tuple[BlockingReads, redis.Redis]]:
    params = {"host": "127.0.0.1", "port": server.port}
    made = BlockingReads(Owner(params, Config(app_name="shop")), Loop(), print)
    yield made, server.client()
    made.close()


def test_what_arrives_between_the_question_and_its_answer_is_not_missed(told):
    watcher, client = told
    watcher.queues_are_empty = True
    watcher._learn_of(["mail"], are_few=True)
    tracker = watcher._tracker
    eventually(lambda: tracker.connection.can_read(0.1))  # the answer: there is none
    client.lpush("mail", "job")
    eventually(lambda: watcher._on_report() or [*watcher._last_job_at] == ["mail"])
    assert watcher.queues_are_empty
    assert tracker.empty == set()
    watcher._learn_of(["mail"], are_few=True)
    watcher._on_report()
    assert not watcher.queues_are_empty


def test_what_is_there_already_is_told_of_until_it_is_gone(told):
    watcher, client = told
    client.lpush("mail", "job")
    for _ in range(2):
        watcher.queues_are_empty = True
        watcher._learn_of(["mail"], are_few=True)
        watcher._on_report()
        assert not watcher.queues_are_empty
    client.delete("mail")
    watcher.queues_are_empty = True
    watcher._learn_of(["mail"], are_few=True)
    watcher._on_report()
    assert watcher.queues_are_empty


def test_an_answer_that_nobody_had_time_to_read_is_not_overdue(told, monkeypatch, caplog):
    """A job ran in this thread meanwhile."""
    watcher, _ = told
    watcher._learn_of(["mail"], are_few=True)
    first = watcher._tracker
    eventually(lambda: first.connection.can_read(0.1))
    monkeypatch.setattr(blocking, "READ_OVERDUE_S", 0.0)
    watcher._learn_of(["mail"], are_few=True)
    assert watcher._tracker is first
    assert not caplog.records


def test_what_is_known_is_not_asked_again(told):
    watcher, client = told
    watcher._learn_of(["mail", "urgent"], are_few=True)
    watcher._on_report()
    before = calls(client, "exists")
    watcher._learn_of(["mail", "urgent"], are_few=True)
    client.lpush("urgent", "job")
    eventually(lambda: watcher._on_report() or watcher._tracker.empty == {"mail"})
    watcher._learn_of(["mail", "urgent"], are_few=True)
    watcher._on_report()
    assert calls(client, "exists") == before + 1


# -- where many wait


def test_where_many_wait_lists_without_a_read_are_looked_at_once_a_second(inbox, server):
    """Each report would wake all of them."""
    place(inbox, MANY)
    reads, client = inbox.channel.fetch.reads, server.client()
    eventually(lambda: inbox.turn() or not reads._tracker.tracking)
    before = calls(client, "exists")
    inbox.turn(3 * POLL_INTERVAL)
    assert 1 <= calls(client, "exists") - before <= 4
    assert not any("t" in row["flags"] for row in client.client_list())
    publish(server.url(), LAST, "seen")
    assert inbox.receive(1) == ["seen"]


def test_a_report_that_comes_while_tracking_ends_is_read(inbox, server):
    tracker = inbox.channel.fetch.reads._tracker
    publish(server.url(), LAST, "now")
    eventually(lambda: tracker.connection.can_read(0.1))
    place(inbox, MANY)
    assert inbox.receive(1) == ["now"]
    eventually(lambda: inbox.turn() or not tracker.tracking)
    publish(server.url(), LAST, "then")
    assert inbox.receive(2) == ["now", "then"]


def test_the_place_says_on_which_lists_it_blocks(server):
    with Inbox(server.url(), *QUEUES) as inbox:
        reads = inbox.channel.fetch.reads
        eventually(lambda: inbox.turn() or reads.armed)
        place(inbox, OwnerRank(3, 40, 40))
        reads.close()
        eventually(lambda: inbox.turn() or lists_of(reads) == {"mail-06", "mail-07"})
        assert len(reads.armed) == 2


@pytest.mark.parametrize(
    "wrong", [OwnerRank(9999, 1, 40), OwnerRank(7, 3, 1000), OwnerRank(0, 10**6, 0)]
)
def test_with_a_wrong_place_each_job_is_found(server, wrong):
    with Inbox(server.url(), *QUEUES) as inbox:
        place(inbox, wrong)
        for number, queue in enumerate(QUEUES, 1):
            publish(server.url(), queue, queue, priority=number % 10)
            inbox.receive(number)
        assert sorted(inbox.said()) == QUEUES


def place(inbox: Inbox, place: OwnerRank) -> None:
    """Set the place of its owner for good."""
    owner = inbox.channel.owner
    owner.heartbeat_session._listener = Elsewhere(owner)
    owner.rank = place


class Elsewhere:
    """An owner that is not told its place: the test sets it."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._owner, name)

    def on_answer(self, *heard: Any) -> None:
        place = self._owner.rank
        self._owner.on_answer(*heard)
        self._owner.rank = place
