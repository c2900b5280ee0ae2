"""A paused queue beside a plain consumer: nothing comes from it, and nothing asks for it."""

from __future__ import annotations

from time import monotonic

import kombu
import pytest

from celery_superfetch.store.owner_registry import OwnerRegistry
from celery_superfetch.transport.fetch import blocking_reads
from celery_superfetch.transport.fetch.blocking_reads import BlockingReads
from celery_superfetch.transport.fetch.fetch_loop import FetchLoop
from celery_superfetch.transport.fetch.queue_lists import QueueLists
from support.servers.commands import blocked, calls
from support.waiting import always, eventually
from support.workers.bench import payload
from support.workers.inbox import Inbox

QUICK = {"heartbeat_interval": 0.2, "owner_ttl": 30}
#: Longer than a test.
SLOW = {"heartbeat_interval": 500, "owner_ttl": 1000}


def turning(*inboxes: Inbox) -> bool:
    for inbox in inboxes:
        inbox.turn(0.02)
    return True


def test_nothing_is_claimed_until_it_is_resumed_and_then_all_in_order(url, bench):
    with Inbox(url, "mail", "press", **QUICK) as inbox:
        bench.paused.pause("mail", "ann")
        bench.push("mail", payload(1), payload(2))
        bench.push("mail\x06\x163", payload(3))
        bench.push("press", payload("other", "press"))
        inbox.receive(1)
        always(lambda: turning(inbox) and len(inbox.messages) == 1, during=1)
        assert bench.queue("mail") == [payload(1), payload(2)]
        bench.paused.resume("mail")
        inbox.receive(4)
        assert inbox.ids() == ["other", "1", "2", "3"]


def test_no_read_waits_on_it_a_heartbeat_later(url, bench, own):
    """A read would take the next job away, if only for a moment."""
    with Inbox(url, "mail", **QUICK) as inbox:
        eventually(lambda: turning(inbox) and inbox.channel.fetch.reads.armed)
        bench.paused.pause("mail", "ann")
        eventually(lambda: turning(inbox) and not inbox.channel.fetch.reads.armed)
        assert not blocked(bench.client)
        bench.push("mail", payload(1))
        always(lambda: turning(inbox) and bench.queue("mail") == [payload(1)], during=1)
        bench.paused.resume("mail")
        inbox.receive(1)
        inbox.ack_all()
        eventually(lambda: turning(inbox) and inbox.channel.fetch.reads.armed)


def test_what_lands_before_the_heartbeat_returns_to_the_front(url, bench):
    """It is the next claim that says it, and the queue is left alone from then on."""
    with Inbox(url, "mail", **SLOW) as inbox:
        eventually(lambda: turning(inbox) and inbox.channel.fetch.reads.armed)
        bench.paused.pause("mail", "ann")
        bench.push("mail", payload(1), payload(2))
        eventually(lambda: turning(inbox) and bench.queue("mail") == [payload(1), payload(2)])
        assert inbox.channel.owner.paused == {"mail"}
        always(lambda: turning(inbox) and not inbox.messages, during=0.5)
        assert not inbox.channel.fetch.reads.armed


def test_the_control_a_claim_that_does_not_look_takes_it(url, bench):
    with Inbox(url, "mail", **SLOW) as inbox:
        inbox.settle_in()
        inbox.channel.owner.private_lists.keys.paused = "superfetch:no such key"
        bench.paused.pause("mail", "ann")
        bench.push("mail", payload(1))
        inbox.receive(1)


def test_a_read_that_the_server_does_not_end_is_closed(url, bench, monkeypatch):
    with Inbox(url, "mail", "press", **QUICK) as inbox:
        eventually(lambda: turning(inbox) and inbox.channel.fetch.reads.armed)
        monkeypatch.setattr(blocking_reads, "unblock", lambda client, some: False)
        bench.paused.pause("mail", "ann")
        bench.paused.pause("press", "ann")
        eventually(lambda: turning(inbox) and not inbox.channel.fetch.reads.armed)
        eventually(lambda: not blocked(bench.client))
        bench.push("mail", payload(1))
        always(lambda: turning(inbox) and bench.queue("mail") == [payload(1)], during=0.5)


@pytest.mark.parametrize("others", [(), ("press",)], ids=["alone", "beside another"])
def test_it_is_not_asked_for_again_and_again(fresh_server, others):
    """A hundred jobs wait, and all that is sent is heartbeats and the look of once a second."""
    server = fresh_server()
    client = server.client()
    with Inbox(server.url(), "mail", *others, heartbeat_interval=1, owner_ttl=30) as inbox:
        inbox.settle_in()
        client.hset("superfetch:paused", "mail", "{}")
        client.lpush("mail", *(payload(n) for n in range(100)))
        eventually(lambda: turning(inbox) and inbox.channel.owner.paused)
        inbox.settle_in()
        client.config_resetstat()
        began = monotonic()
        always(lambda: turning(inbox) and not inbox.messages, during=4)
        seconds = monotonic() - began
        scripts = calls(client, "evalsha", "eval") / seconds
        asked = calls(client, "exists", "blmove", "rpop") / seconds
        assert scripts < 2.5, "its heartbeats"
        assert asked < 3, "the looks at others"


def test_the_control_a_worker_that_does_not_follow_asks_on_and_on(fresh_server, monkeypatch):
    monkeypatch.setattr(FetchLoop, "_follow_pauses", lambda self: None)
    server = fresh_server()
    client = server.client()
    with Inbox(server.url(), "mail", heartbeat_interval=1, owner_ttl=30) as inbox:
        inbox.settle_in()
        client.hset("superfetch:paused", "mail", "{}")
        client.lpush("mail", *(payload(n) for n in range(100)))
        eventually(lambda: turning(inbox) and inbox.channel.owner.paused)
        client.config_resetstat()
        began = monotonic()
        always(lambda: turning(inbox) and not inbox.messages, during=2)
        assert calls(client, "blmove", "evalsha") / (monotonic() - began) > 20


def test_the_control_a_pause_that_claims_alone_know_leaves_reads_behind(url, bench, monkeypatch):
    heartbeat = OwnerRegistry.heartbeat
    monkeypatch.setattr(
        OwnerRegistry,
        "heartbeat",
        lambda self, *args, **more: heartbeat(self, *args, **more)._replace(paused=frozenset()),
    )
    with Inbox(url, "mail", **QUICK) as inbox:
        eventually(lambda: turning(inbox) and inbox.channel.fetch.reads.armed)
        bench.paused.pause("mail", "ann")
        always(lambda: turning(inbox) and inbox.channel.fetch.reads.armed, during=1)


def test_a_get_finds_nothing_with_an_ack_or_without(url, bench):
    bench.push("mail", payload(1), payload(2))
    bench.paused.pause("mail", "ann")
    with Inbox(url, consume=False, **SLOW) as inbox:
        mail = kombu.Queue("mail")(inbox.channel)
        assert mail.get(no_ack=False) is None
        assert mail.get(no_ack=True) is None
        assert bench.queue("mail") == [payload(1), payload(2)]
        bench.paused.resume("mail")
        assert mail.get(no_ack=True).headers["id"] == "1"
        taken = mail.get(no_ack=False)
        assert taken.headers["id"] == "2"
        taken.ack()


def test_a_queue_that_is_consumed_later_is_paused_at_once(url, bench):
    bench.paused.pause("press", "ann")
    with Inbox(url, "mail", **QUICK) as inbox:
        inbox.settle_in()
        bench.push("press", payload(1, "press"))
        inbox.consumer.add_queue(kombu.Queue("press"))
        inbox.consumer.consume()
        always(lambda: turning(inbox) and not inbox.messages, during=0.5)
        assert bench.queue("press") == [payload(1, "press")]
        bench.paused.resume("press")
        inbox.receive(1)


def test_the_order_leaves_it_out_and_the_others_have_their_turns():
    lists = QueueLists("round_robin")
    lists.set_queues({q: [q, f"{q}:3"] for q in "abc"}, lambda queue: 0)
    lists.set_paused(frozenset("b"))
    assert lists.order() == ["a", "c", "a:3", "c:3"] == lists.open_names
    assert lists.fairness_width == 2
    assert lists.names == ["a", "b", "c", "a:3", "b:3", "c:3"], "all are registered"
    lists.set_queues({q: [q] for q in "bd"}, lambda queue: 0)
    assert lists.open_names == ["d"], "it stays so when others are consumed"
    lists.set_paused(frozenset("bd"))
    assert lists.order() == lists.open_names == []
    lists.set_paused(frozenset())
    assert lists.open_names == ["b", "d"]


def test_reads_leave_the_lists_that_are_named(url, bench):
    with Inbox(url, "mail", "press", **SLOW) as inbox:
        reads: BlockingReads = inbox.channel.fetch.reads
        eventually(lambda: turning(inbox) and len(reads.armed) > 1)
        left = reads.armed[0].queue_list
        reads.leave_lists({left})
        assert left not in {read.queue_list for read in reads.armed}
