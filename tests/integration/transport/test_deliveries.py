"""Jobs are delivered in the turn that claimed them; what else the loop serves has its turn, too."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import kombu
import pytest
from kombu.asynchronous.hub import Hub

from celery_superfetch.owner.owner import REFUSED_MAX
from celery_superfetch.transport import poller
from celery_superfetch.transport.intake import Intake
from support.driver import Driver, Executor
from support.interruption import Late
from support.servers.database import Database
from support.waiting import always, eventually
from support.workers.bench import Bench, payload
from support.workers.inbox import Inbox, publish, turn_of

LOOPS = ["hub", "drain_events"]
Settle = Callable[[Any], object]


@contextmanager
def consuming(
    url: str, loop: str, settle: Settle, prefetch: int = 1
) -> Iterator[tuple[Inbox, Callable[[], bool]]]:
    """A consumer that settles each message as it comes, and a turn of its loop."""
    hub = Hub()
    with Inbox(url, prefetch=prefetch, consume=False) as inbox:
        inbox.consumer.on_message = lambda message: (
            inbox.messages.append(message),
            settle(message),
        )
        executor = inbox.connection.transport.cycle.executor = Executor()
        executor.endless = loop == "synloop"  # Celery's, under gevent
        inbox.consumer.consume()
        if loop == "hub":
            inbox.connection.register_with_event_loop(hub)

        def turn() -> bool:
            if loop == "hub":
                return turn_of(hub)
            inbox.turn()
            return True

        yield inbox, turn
    # kombu leaves the socket of its own BRPOP there.
    ours = [read for read, _ in hub.readers.values() if isinstance(read.__self__, poller.Poller)]
    hub.close()
    assert not ours, "nothing of a closed connection stays in the loop"


@contextmanager
def busy(
    url: str, loop: str, bench: Bench
) -> Iterator[tuple[Inbox, Callable[[], bool], list[Any]]]:
    """A consumer of jobs each of which brings the next. Meanwhile there is news for it in a queue
    without ack, which is another socket of the same loop."""
    news: list[Any] = []

    def settle(message: Any) -> None:
        bench.push("mail", payload(len(inbox.messages)))
        message.ack()

    bench.push("mail", payload("first"))
    with consuming(url, loop, settle) as (inbox, turn):
        radio, channel = [kombu.Queue("radio")], inbox.connection.channel()
        kombu.Consumer(channel, radio, no_ack=True, on_message=news.append).consume()
        eventually(lambda: turn() and len(inbox.messages) > 10, 10, 0)
        publish(url, "radio", "news")
        yield inbox, turn, news


def test_a_turn_delivers_all_that_it_can_claim(url, bench, monkeypatch):
    monkeypatch.setattr(poller, "DELIVERY_BUDGET_S", 60.0)
    bench.push("mail", *map(payload, range(20)))
    in_flight: list[int] = []

    def settle(message: Any) -> None:
        in_flight.append(len(bench.private()))
        message.ack()

    with consuming(url, "hub", settle) as (inbox, turn):
        turn()
        assert len(inbox.messages) == 20
        assert set(in_flight) == {1}, "the ack of the one before is with the server"
    assert bench.queue() == []


def test_acks_go_together_and_are_sent_when_the_last_job_has_its(url, bench, monkeypatch):
    """The server has done with them by the time of the next claim, which is waited for."""
    monkeypatch.setattr(poller, "DELIVERY_BUDGET_S", 60.0)
    bench.push("mail", *map(payload, range(6)))

    def settle(message: Any) -> None:
        message.ack()
        if len(inbox.messages) % 3:
            always(lambda: len(bench.private()) == 3, 0.05)
        else:
            eventually(lambda: bench.private() == [])

    with consuming(url, "hub", settle, prefetch=3) as (inbox, turn):
        eventually(lambda: turn() and len(inbox.messages) == 6, 10, 0)


@pytest.mark.parametrize("loop", [*LOOPS, "synloop"])
def test_jobs_without_end_keep_nothing_else_from_its_turn(url, bench, loop):
    with busy(url, loop, bench) as (_, turn, news):
        eventually(lambda: turn() and news, 10, 0)


def test_the_control_without_a_bound_they_do(url, bench, monkeypatch):
    monkeypatch.setattr(poller, "DELIVERY_BUDGET_S", math.inf)
    with busy(url, "drain_events", bench) as (inbox, turn, news):
        eventually(lambda: turn() and len(inbox.messages) > 500, 30, 0)
        assert not news


@pytest.mark.parametrize("loop", LOOPS)
def test_a_callback_may_close_the_connection(url, bench, loop):
    bench.push("mail", payload(1), payload(2))
    inboxes: list[Inbox] = []

    def settle(message: Any) -> None:
        message.ack()
        inboxes[0].connection.close()

    with consuming(url, loop, settle) as (inbox, turn):
        inboxes.append(inbox)
        eventually(lambda: turn() and inbox.messages, 10, 0)
        assert len(inbox.messages) == 1
    assert bench.queue() == [payload(2)]


def test_a_consumer_without_requests_may_begin_at_any_moment(url, bench):
    """No suspect runs alone beside such jobs, however they came."""
    bench.push("mail", payload(1), payload(2))
    with Inbox(url, prefetch=1) as inbox:
        inbox.receive(1)
        driver = Driver.of(inbox.channel.owner)
        [pushed] = driver
        pulled = inbox.channel.basic_get("mail").delivery.job
        assert [driver.state(job) for job in (pushed, pulled)] == ["DELIVERED"] * 2


def test_a_job_whose_delivery_is_interrupted_is_delivered_again(url, bench):
    interruptions = [Late()]

    def apply_limits(*_: Any) -> bool:
        if interruptions:
            raise interruptions.pop()
        return False

    bench.push("mail", payload(1), payload(2))
    with Inbox(url, prefetch=2, consume=False) as inbox:
        inbox.channel.intake = Intake(apply_limits=apply_limits)
        inbox.consumer.consume()
        with pytest.raises(Late):
            inbox.receive(1)
        inbox.receive(2)
        assert len(set(inbox.ids())) == 2
        inbox.ack_all()
        eventually(lambda: inbox.turn() or not bench.held())


class Interrupted(deque[Any]):
    """A backlog. A signal handler raises once: just after a job was taken from it, or before the
    jobs of a claim are added."""

    def __init__(self, jobs: Any, moment: str) -> None:
        super().__init__(jobs)
        self.moment = moment

    def pass_moment(self, moment: str) -> None:
        if self.moment == moment:
            self.moment = ""
            raise Late

    def popleft(self) -> Any:
        job = super().popleft()
        self.pass_moment("taken")
        return job

    def extend(self, jobs: Any) -> None:
        self.pass_moment("claimed")
        super().extend(jobs)


def interrupt(inbox: Inbox, moment: str) -> None:
    """Let the next claim or delivery of a consumer be interrupted."""
    backlog = inbox.channel.fetch.backlog
    backlog.ready = Interrupted(backlog.ready, moment)
    with pytest.raises(Late):
        eventually(lambda: inbox.turn(), 10, 0)


@pytest.mark.parametrize("moment", ["claimed", "taken"])
def test_a_job_that_no_channel_has_after_an_exception_is_delivered_by_the_same_channel(
    url, bench, moment
):
    """It stayed claimed until the last channel closed."""
    with Inbox(url, prefetch=2) as inbox:
        bench.push("mail", payload(1), payload(2))
        interrupt(inbox, moment)
        inbox.receive(2)
        assert sorted(inbox.ids()) == ["1", "2"]
        inbox.ack_all()
        eventually(lambda: inbox.turn() or not bench.held())


def test_a_job_that_an_exception_takes_from_basic_get_comes_with_the_next_call(
    url, bench, monkeypatch
):
    bench.push("mail", payload(1))
    with Inbox(url, consume=False) as inbox:

        def interrupted(lease: Any) -> Any:
            raise Late

        with monkeypatch.context() as patch:
            patch.setattr(inbox.channel.qos, "receive", interrupted)
            with pytest.raises(Late):
                inbox.channel.basic_get("mail")
        assert inbox.channel.basic_get("mail").headers["id"] == "1"


def test_a_job_that_no_channel_has_is_requeued_when_its_channel_closes(url, bench):
    """The other channel of this process stays."""
    with Inbox(url, "post") as other, Inbox(url, prefetch=2) as inbox:
        other.turn()
        bench.push("mail", payload(1), payload(2))
        interrupt(inbox, "taken")
        assert other.channel.owner is inbox.channel.owner
        inbox.channel.close()
        assert not bench.held()
        assert sorted(bench.queue()) == [payload(1), payload(2)]


@pytest.mark.parametrize("is_control", [False, True], ids=["", "control"])
def test_a_job_that_another_channel_delivers_at_this_moment_is_not_requeued(url, bench, is_control):
    """No consumer has it yet, either. In the control it was claimed for the channel that requeues
    its own."""
    is_delivering, may_go_on = Event(), Event()

    def apply_limits(*_: Any) -> bool:
        is_delivering.set()
        return not may_go_on.wait(20)

    with Inbox(url, "post", consume=False) as other, Inbox(url, prefetch=1) as inbox:
        other.channel.intake = Intake(apply_limits=apply_limits)
        other.consumer.consume()
        bench.push("post", payload("other"))
        delivery = Thread(target=other.receive, args=[1])
        delivery.start()
        try:
            assert is_delivering.wait(20)
            driver = Driver.of(inbox.channel.owner)
            [job] = driver
            if is_control:
                driver.move_to_backlog(job, inbox.channel.fetch.backlog)
            bench.push("mail", payload(1))
            interrupt(inbox, "taken")
            inbox.receive(1)
            assert driver.state(job) == (None if is_control else "FETCHED")
        finally:
            may_go_on.set()
            delivery.join()


def test_a_job_whose_consumer_raises_is_not_requeued(url, bench):
    """A thread of the consumer may have it, and ack it."""
    bench.push("mail", payload(1), payload(2))
    with Inbox(url, prefetch=2) as inbox:

        def receive(message: Any) -> None:
            inbox.messages.append(message)
            if len(inbox.messages) == 1:
                raise Late

        inbox.consumer.on_message = receive
        with pytest.raises(Late):
            inbox.receive(1)
        inbox.receive(2)
        inbox.settle_in()
        assert sorted(inbox.ids()) == ["1", "2"]
        driver = Driver.of(inbox.channel.owner)
        assert [driver.state(job) for job in driver] == ["DELIVERED"] * 2


def test_a_payload_that_the_server_refuses_to_move_ends_no_plain_consumer(url, bench, client):
    """Its error came out of `drain_events`, each time."""
    client.set(bench.keys.dead, "a text")
    bench.push("mail", b"junk", payload(1), payload(2))
    with Inbox(url) as inbox:
        inbox.receive(2)
        assert sorted(inbox.ids()) == ["1", "2"]
        assert b"junk" in bench.private(), "it waits for its time"
        inbox.ack_all()
        client.delete(bench.keys.dead)
        eventually(lambda: inbox.turn() or client.exists(bench.keys.dead), 15)
        eventually(lambda: not bench.held())


def test_nor_does_it_come_from_basic_get(url, bench, client):
    client.set(bench.keys.dead, "a text")
    bench.push("mail", b"junk", payload(1))
    with Inbox(url, consume=False) as inbox:
        assert inbox.channel.basic_get("mail").headers["id"] == "1"
        assert inbox.channel.basic_get("mail") is None


@pytest.mark.parametrize("refused", ["requeue", "postpone"])
def test_a_suspect_whose_requeue_waits_keeps_nothing_else_from_running(url, bench, client, refused):
    """Its solo run went on until its window was over, a minute later."""
    Database(client).suspect(payload(1), "mail")
    with Inbox(url, "mail", "other", prefetch=2) as inbox:
        inbox.receive(1)
        driver = Driver.of(inbox.channel.owner)
        suspect = driver.solo
        assert suspect is not None
        if refused == "requeue":
            client.set("mail", "no queue")
            inbox.messages[0].requeue()
        else:
            client.set(bench.keys.parked_of("mail"), "no sorted set")
            inbox.messages[0].delivery.postpone(60)
        bench.push("other", payload(2, queue="other"))
        inbox.receive(2, within=3)
        assert driver.state(suspect) == "RETURNING"
        assert driver.has_waiting_note(suspect), "beside others it must not count as running"


def test_many_requeues_that_one_queue_refuses_stop_no_other_queue(url, bench, client):
    """After a hundred of them nothing was claimed."""
    count = REFUSED_MAX + 20
    bench.push("mail", *map(payload, range(count)))
    with Inbox(url, "mail", "other", prefetch=count) as inbox:
        inbox.receive(count)
        client.set("mail", "no queue")
        for message in inbox.messages:
            message.requeue()
        assert Driver.of(inbox.channel.owner).returning_count == count
        bench.push("other", payload("last", queue="other"))
        inbox.receive(count + 1, within=5)
        client.delete("mail")


def test_the_control_many_jobs_that_are_refused_stop_the_claims_and_the_log_says_so(
    url, bench, client, caplog
):
    """They would all be claimed into memory, again and again."""
    client.set(bench.keys.dead, "a text")
    bench.push("mail", *[b"junk"] * REFUSED_MAX)
    with Inbox(url, "mail", "other", prefetch=REFUSED_MAX) as inbox:
        driver = Driver.of(inbox.channel.owner)
        eventually(lambda: inbox.turn(0.001) or driver.refused_count == REFUSED_MAX, 4, 0)
        bench.push("other", payload("last", queue="other"))
        inbox.settle_in()
        assert not inbox.messages
        assert f"none is claimed while {REFUSED_MAX} such jobs wait" in caplog.text
        inbox.receive(1)  # when they were requeued


def test_basic_get_alone_requeues_what_the_server_refused_to_move(url, bench, client):
    """After a hundred such jobs each call returned None, also when the cause was gone."""
    client.set(bench.keys.dead, "a text")
    bench.push("mail", *[b"junk"] * (REFUSED_MAX + 20), payload(1))
    with Inbox(url, consume=False) as inbox:
        assert inbox.channel.basic_get("mail") is None
        driver = Driver.of(inbox.channel.owner)
        assert driver.refused_count == REFUSED_MAX
        assert inbox.channel.basic_get("mail") is None, "they wait for their time"
        assert driver.refused_count == REFUSED_MAX
        client.delete(bench.keys.dead)
        driver.retry_requeues_now()
        assert inbox.channel.basic_get("mail").headers["id"] == "1"
        assert inbox.channel.basic_get("mail") is None
        assert client.zcard(bench.keys.dead) == REFUSED_MAX + 20


def test_basic_get_alone_ends_the_solo_run_of_a_suspect_whose_ack_was_refused(fresh_server):
    """The ack was not sent again, and each call returned None, for a minute."""
    own = fresh_server()
    bench = Bench(own.client())
    Database(bench.client).suspect(payload(1), "mail")
    with Inbox(own.url(), consume=False) as inbox:
        channel = inbox.channel
        suspect = eventually(lambda: channel.basic_get("mail"))
        driver = Driver.of(channel.owner)
        assert driver.solo
        bench.client.config_set("min-replicas-to-write", 1)
        suspect.ack()
        bench.client.config_set("min-replicas-to-write", 0)
        assert driver.settled_count == 1
        bench.push("mail", payload(2))
        assert channel.basic_get("mail").headers["id"] == "2"
