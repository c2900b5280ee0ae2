"""Plain kombu consumers while connections break and the server restarts.

Nothing is lost, and nothing runs twice: not what was delivered, and not what waited.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import kombu
import pytest
from kombu.mixins import ConsumerMixin
from kombu.utils.limits import TokenBucket

from support.servers.server import Server
from support.waiting import always, eventually
from support.workers.bench import Bench, payload
from support.workers.inbox import TRANSPORT

#: Shorter than a restart takes, so that heartbeats fail and come back in these tests, too.
OPTIONS = {"heartbeat_interval": 0.5, "owner_ttl": 60}


class Mill(ConsumerMixin):
    """kombu's own kind of consumer: it reconnects by itself."""

    restart_limit = TokenBucket(100)

    def __init__(self, url: str, prefetch: int = 4) -> None:
        self.connection = kombu.Connection(url, transport=TRANSPORT, transport_options=OPTIONS)
        self.prefetch = prefetch
        self.ran: Counter[str] = Counter()
        self.revived = 0

    def get_consumers(self, consumer: Callable[..., Any], channel: Any) -> list[Any]:
        return [
            consumer([kombu.Queue("mail")], on_message=self.run_job, prefetch_count=self.prefetch)
        ]

    def create_connection(self) -> kombu.Connection:
        connection = super().create_connection()
        connection.ensure_connection = partial(
            connection.ensure_connection, interval_start=0.1, interval_step=0, interval_max=0.1
        )
        return connection

    def on_connection_revived(self) -> None:
        self.revived += 1

    def on_connection_error(self, exc: Exception, interval: float) -> None:
        pass  # kombu's own writes a traceback

    def run_job(self, message: kombu.Message) -> None:
        self.ran[message.headers["id"]] += 1
        message.ack()


@contextmanager
def at_work(*mills: Mill) -> Iterator[None]:
    """Each consumes in a thread of its own."""

    threads = [threading.Thread(target=mill.run, kwargs={"safety_interval": 0.1}) for mill in mills]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for mill in mills:
            mill.should_stop = True
        for thread in threads:
            thread.join(30)
        for mill in mills:
            mill.connection.release()


def ran(*mills: Mill) -> Counter[str]:
    return sum((mill.ran for mill in mills), Counter[str]())


def once(names: list[str]) -> Counter[str]:
    return Counter(names)


def nothing_left(bench: Bench) -> bool:
    kinds = ("superfetch:owner", "superfetch:private", "superfetch:host")
    left = {name for name in bench.key_names() if name.startswith(kinds)}
    assert left == set()
    assert bench.queue() == []
    return True


def cut_all(bench: Bench) -> int:
    """CLIENT KILL of every connection but the test's own."""
    return int(bench.client.client_kill_filter(_type="normal", skipme=True))


def test_connections_that_are_cut_again_and_again_lose_and_double_nothing(
    url: str, bench: Bench
) -> None:
    mill = Mill(url)
    names: list[str] = []
    with at_work(mill):
        for number in range(8):
            more = [f"{number}.{n}" for n in range(25)]
            names += more
            bench.push("mail", *map(payload, more[:15]))
            cut_all(bench)
            bench.push("mail", *map(payload, more[15:]))
            eventually(lambda: not bench.queue())
        eventually(lambda: set(ran(mill)) == set(names))
        eventually(lambda: not any(":private:" in name for name in bench.key_names()))
    assert ran(mill) == once(names)
    assert mill.revived > 2, "the control: connections were lost"
    assert nothing_left(bench)


@pytest.mark.parametrize("how", ["restart", "kill -9"])
def test_a_server_that_restarts_loses_and_doubles_nothing(
    fresh_server: Callable[..., Server], how: str
) -> None:
    own = fresh_server(appendonly=True, appendfsync="always")
    bench = Bench(own.client())
    mill = Mill(own.url())
    names = [str(n) for n in range(30)]
    bench.push("mail", *map(payload, names))
    with at_work(mill):
        eventually(lambda: ran(mill))
        if how == "restart":
            own.stop()
        else:
            own.kill()
        own.start()
        more = [f"after-{n}" for n in range(30)]
        bench.push("mail", *map(payload, more))
        names += more
        eventually(lambda: set(ran(mill)) == set(names))
        eventually(lambda: not any(":private:" in name for name in bench.key_names()))
    assert ran(mill) == once(names)
    assert nothing_left(bench)


def test_many_consumers_of_one_process_lose_and_double_nothing(url: str, bench: Bench) -> None:
    """They are one owner with the same private list: what one of them finds there after its
    connection broke may be on its way to another."""
    mills = [Mill(url, prefetch=2) for _ in range(8)]
    names: list[str] = []
    with at_work(*mills):
        for number in range(12):
            more = [f"{number}.{n}" for n in range(24)]
            names.extend(more)
            for at in range(0, 24, 8):  # so that the waiting reads get some of them
                bench.push("mail", *map(payload, more[at : at + 8]))
                cut_all(bench)
            eventually(lambda: len(ran(*mills)) == len(names), message="all ran")
        eventually(lambda: not any(":private:" in name for name in bench.key_names()))
    assert ran(*mills) == once(names)
    assert nothing_left(bench)


def test_autoretry_goes_on_with_gets_after_restarts(
    fresh_server: Callable[..., Server],
) -> None:
    """The ack that found no server is sent by the next get; the get itself is tried again."""
    own = fresh_server(appendonly=True, appendfsync="always")
    bench = Bench(own.client())
    names = [str(n) for n in range(6)]
    bench.push("mail", *map(payload, names))
    seen: list[str] = []
    errors: list[Exception] = []

    def get(channel: Any) -> kombu.Message | None:
        message: kombu.Message | None = kombu.Queue("mail")(channel).get()
        return message

    def mend(exc: Exception, interval: float) -> None:
        errors.append(exc)
        if not own.alive():
            own.start()

    with kombu.Connection(own.url(), transport=TRANSPORT, transport_options=OPTIONS) as connection:
        ensured = connection.autoretry(get, errback=mend, interval_start=0.1)
        while (message := ensured()[0]) is not None:
            seen.append(message.headers["id"])
            if len(seen) % 3 == 0:
                own.kill()
            message.ack()
        assert len(errors) >= 2, "the control: connections were lost"
    assert seen == names
    assert nothing_left(bench)


def test_a_process_that_left_and_was_cut_comes_back_without_an_error(
    url: str, bench: Bench
) -> None:
    """Idle connections are closed by servers and firewalls, the heart's among them."""
    for _ in range(2):
        bench.push("mail", payload(1))
        with kombu.Connection(url, transport=TRANSPORT, transport_options=OPTIONS) as connection:
            kombu.Queue("mail")(connection.channel()).get().ack()
        assert nothing_left(bench)
        cut_all(bench)


def test_a_get_whose_reply_was_lost_is_found_by_the_next(
    fresh_server: Callable[..., Server],
) -> None:
    """Nothing but gets: no consumer's loop compares the private lists with what is held."""
    own = fresh_server()
    bench = Bench(own.client())
    options = {**OPTIONS, "socket_timeout": 0.3}
    with kombu.Connection(own.url(), transport=TRANSPORT, transport_options=options) as connection:
        queue = kombu.Queue("mail")(connection.channel())
        assert queue.get() is None, "registered by now"
        bench.push("mail", payload(1))
        own.pause()
        with pytest.raises(connection.connection_errors):
            queue.get()
        own.resume()
        eventually(lambda: not bench.queue(), message="the control: claimed all the same")
        message = queue.get()
        assert message is not None
        message.ack()
    assert nothing_left(bench)


DIES_WITH_ITS_ACK = """
import os, sys, kombu

def end(message):
    if sys.argv[3]:
        message.ack()
    os.kill(os.getpid(), 9)

connection = kombu.Connection(sys.argv[1], transport=sys.argv[2])
kombu.Consumer(connection, [kombu.Queue("mail")], on_message=end).consume()
while True:
    connection.drain_events(timeout=30)
"""


@pytest.mark.parametrize("acked", [True, False])
def test_an_ack_arrives_although_nobody_lives_to_read_the_answer(
    url: str, bench: Bench, acked: bool
) -> None:
    """The control: what was not acked stays."""
    bench.push("mail", payload(1))
    command = [sys.executable, "-c", DIES_WITH_ITS_ACK, url, TRANSPORT, "ack" if acked else ""]
    assert subprocess.run(command, timeout=60).returncode == -signal.SIGKILL
    [owner] = bench.registry.owners()
    left = [] if acked else [payload(1)]
    eventually(lambda: bench.private(owner) == left)
    always(lambda: bench.private(owner) == left, during=0.3)
