"""Programs that fork: `-m support.apps.forks <program>`. Each prints what it saw as JSON lines."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import kombu
from kombu import pools

from celery_superfetch.reaper.reaper import Reaper

URL = os.environ.get("URL", "")
TRANSPORT = "celery_superfetch:Transport"


def say(**what: Any) -> None:
    """One write: several processes share the log."""
    os.write(1, (json.dumps({"pid": os.getpid(), **what}) + "\n").encode())


class Consumer:
    """Consumes `mail` over a connection until it has seen enough."""

    def __init__(self, connection: kombu.Connection, prefetch: int) -> None:
        self.connection = connection
        self.messages: list[kombu.Message] = []
        kombu.Consumer(
            connection.default_channel,
            [kombu.Queue("mail")],
            prefetch_count=prefetch,
            on_message=self.messages.append,
        ).consume()

    def receive(self, count: int) -> list[str]:
        """Names of the last messages, when there were `count` in all; gives up after 10 s."""
        deadline = time.monotonic() + 10
        while len(self.messages) < count and time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                self.connection.drain_events(timeout=0.2)
        return [message.headers["id"] for message in self.messages]

    @property
    def owner(self) -> str:
        return str(self.connection.default_channel.owner.name)

    def ack_all(self) -> None:
        for message in self.messages:
            if not message.acknowledged:
                message.ack()


def connect() -> kombu.Connection:
    return kombu.Connection(URL, transport=TRANSPORT)


def child(inherited: kombu.Connection | None, unguarded: bool) -> None:
    """Publishes, consumes one message as an owner of its own, and closes what it inherited."""
    error = ""
    if inherited is not None:
        channel = inherited.default_channel
        if unguarded:  # the control: it takes itself for the one that connected
            channel._pid = channel.owner.pid = os.getpid()
        else:
            try:
                inherited.drain_events(timeout=0.1)
            except Exception as exc:
                error = type(exc).__name__
        inherited.close()
    with connect() as own:
        own.Producer().publish("from the child", routing_key="answers", serializer="json")
        if unguarded:
            return say(who="child", ran=[], owner="")
        consumer = Consumer(own, prefetch=1)
        ran = consumer.receive(1)
        consumer.ack_all()
        say(who="child", ran=ran, owner=consumer.owner, error=error)


def consume_then_fork(how: str) -> None:
    """Holds three messages from a connection of kombu's pool, has a child, and goes on."""
    with pools.connections[connect()].acquire(block=True) as connection:
        consumer = Consumer(connection, prefetch=3)
        consumer.receive(3)
        owner = consumer.owner
        if how in ("os.fork", "unguarded"):
            pid = os.fork()
            if not pid:
                child(connection, how == "unguarded")
                sys.exit(0)  # with everything that runs at an exit
            os.waitpid(pid, 0)
        else:
            context: Any = multiprocessing.get_context(how)
            args = (None if how == "spawn" else connection, False)
            process = context.Process(target=child, args=args)
            process.start()
            process.join()
        say(who="parent forked", held=len(consumer.messages))
        sys.stdin.readline()  # the test looks, and publishes one more
        consumer.ack_all()
        ran = consumer.receive(5)  # the child has had the sixth
        consumer.ack_all()
        say(who="parent", ran=ran, owner=owner, still=consumer.owner)


def serve() -> None:
    """As gunicorn with `preload_app`: the master imports the app and publishes, then forks."""
    from celery import Celery

    import celery_superfetch

    app = celery_superfetch.install(Celery("shop", broker=URL))

    def publish(who: str) -> None:
        for number in range(5):
            app.send_task("shop.note", (f"{who}-{number}",))
        names = [thread.name for thread in threading.enumerate()]
        say(who=who, threads=names)

    publish("master")
    pids = []
    for number in range(3):
        pid = os.fork()
        if not pid:
            publish(f"worker{number}")
            sys.exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    publish("master again")


def execute_anew() -> None:
    """Executes itself again with two messages in its hands and no good-bye."""
    connection = connect()
    consumer = Consumer(connection, prefetch=2)
    say(who="first", ran=consumer.receive(2), owner=consumer.owner)
    os.execv(sys.executable, [sys.executable, "-m", "support.apps.forks", "executed"])


def executed() -> None:
    with connect() as connection:
        consumer = Consumer(connection, prefetch=1)
        consumer.receive(1)  # it is registered by now
        membership = connection.default_channel.owner
        report = Reaper(membership.database, staleness=membership.staleness).reap()
        consumer.ack_all()
        while len(consumer.messages) < 4:
            consumer.receive(len(consumer.messages) + 1)
            consumer.ack_all()
        say(
            who="second",
            ran=[message.headers["id"] for message in consumer.messages],
            owner=consumer.owner,
            dead={owner: reason.value for owner, reason in report.dead.items()},
        )


def hold() -> None:
    """A plain consumer with two messages in its hands."""
    consumer = Consumer(connect(), prefetch=2)
    say(who="holder", ran=consumer.receive(2), owner=consumer.owner)
    threading.Event().wait()


def two_settings() -> None:
    """Two apps of one process on one database, each with its own idea of who is dead when."""
    settings = {"hasty": (0.4, 1.2), "patient": (0.4, 600.0)}
    keep = []
    for name, (interval, ttl) in settings.items():
        options = {"heartbeat_interval": interval, "owner_ttl": ttl, "app_name": name}
        connection = kombu.Connection(URL, transport=TRANSPORT, transport_options=options)
        consumer = Consumer(connection, prefetch=1)
        consumer.receive(1)
        keep.append(consumer)
        say(who=name, owner=consumer.owner)
    threading.Event().wait()


class Embedded:
    """An app whose workers run in a thread of this process, as in tests, with a task that ends when
    it is told to."""

    def __init__(self) -> None:
        from celery import Celery

        import celery_superfetch

        self.app = celery_superfetch.install(Celery("shop", broker=URL))
        self.begun, self.end, self.ended = (threading.Event() for _ in range(3))

        @self.app.task
        def hold() -> None:
            self.begun.set()
            self.end.wait()
            self.ended.set()

        self._hold = hold

    def worker(self) -> contextlib.AbstractContextManager[Any]:
        from celery.contrib.testing.worker import start_worker

        return start_worker(self.app, pool="threads", perform_ping_check=False)

    def work_until_held(self) -> None:
        """Run a worker, which ends while its pool is at the task."""
        with self.worker():
            self._hold.delay()
            self.begun.wait(20)


def embed() -> None:
    """A worker in a thread ends while its pool is at a job, and the next begins."""
    embedded, ran = Embedded(), threading.Event()

    @embedded.app.task
    def note() -> None:
        ran.set()

    embedded.work_until_held()
    with embedded.worker():
        note.delay()
        say(who="second", ran=ran.wait(10))
    embedded.end.set()

    def threads() -> list[str]:
        names = {thread.name for thread in threading.enumerate() if "superfetch" in thread.name}
        return sorted(names - {"superfetch-heartbeat"})

    until = time.monotonic() + 10  # one that is in the midst of a pass ends after it
    while threads() and time.monotonic() < until:
        time.sleep(0.05)
    say(who="end", threads=threads())


def embed_refused() -> None:
    """Run a worker in a thread until it has ended. Then its last job ends while the server refuses
    the ack, and the process continues."""
    import redis

    embedded = Embedded()
    embedded.work_until_held()
    with redis.Redis.from_url(URL) as client:
        client.config_set("min-replicas-to-write", 1)
        embedded.end.set()
        embedded.ended.wait(10)
        time.sleep(1)
        say(who="refused", private=len(client.keys("superfetch:private:*")))
        client.config_set("min-replicas-to-write", 0)
        until = time.monotonic() + 15
        while client.zcard("superfetch:owners") and time.monotonic() < until:
            time.sleep(0.1)
        say(
            who="end",
            private=len(client.keys("superfetch:private:*")),
            owners=client.zcard("superfetch:owners"),
        )


PROGRAMS: dict[str, Callable[..., None]] = {
    "consume_then_fork": consume_then_fork,
    "serve": serve,
    "execute_anew": execute_anew,
    "executed": executed,
    "hold": hold,
    "two_settings": two_settings,
    "embed": embed,
    "embed_refused": embed_refused,
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
