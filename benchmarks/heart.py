"""How long a worker is not heard while it holds many jobs and its connections break.

    python benchmarks/heart.py [--held 30000] [--package PATH] [--without-gc]

A prefork worker on a server of its own receives that many ETA jobs, loses all of its connections
(Celery drops the jobs, they go back to their queue and are claimed again), and once more with a
server that has forgotten the scripts. Printed is the longest time between two heartbeats, as the
server saw them, in each of these; `--package` names a directory with another `celery_superfetch`
for the worker, to see them side by side.

The aim: with 30,000 jobs, at most one second beyond its interval. A full run of CPython's garbage
collector stops all threads, and takes half a second where so many requests live:
`--without-gc` shows what the heart itself has to answer for.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import redis
from compare import arguments  # noqa: F401 - finds the tests' harness

from support.apps.build import build_app
from support.servers.faults import kill_connections
from support.servers.ledger import LEDGER_DB
from support.servers.server import Server
from support.waiting import eventually
from support.workers.worker import TESTS, Worker, app_env

#: Seconds between two heartbeats.
INTERVAL = 1.0
#: Seconds after which something is wrong.
PATIENCE = 900.0
#: A worker without a garbage collector.
WITHOUT_GC = "import gc; gc.disable(); from celery.__main__ import main; main()"


class Ear(threading.Thread):
    """Hears the owners, and knows the longest time between two heartbeats of any."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.client = server.client()
        self.longest = 0.0
        self.names: set[bytes] = set()
        self.over = threading.Event()

    def begin(self) -> None:
        """Forget what was."""
        self.longest = 0.0

    def run(self) -> None:
        last = 0.0
        while not self.over.wait(0.01):
            try:
                seconds, micros = self.client.time()
                rows: Any = self.client.zrange("superfetch:owners", 0, -1, withscores=True)
            except redis.ConnectionError:  # it was broken with the others
                continue
            self.names |= {name for name, _ in rows}
            last = max([last, *(score for _, score in rows)])
            if last:
                self.longest = max(self.longest, seconds + micros / 1e6 - last / 1e3)


def sample(app: Any, client: Any) -> tuple[bytes, bytes]:
    """A job that is due in a day, and its id."""
    sent = app.tasks["shop.note"].apply_async(("eta",), countdown=86400)
    return client.lpop("celery"), sent.id.encode()


def fill(client: Any, one: tuple[bytes, bytes], count: int) -> None:
    """Send many like it, faster than Celery would."""
    raw, name = one
    while count:
        batch = min(count, 1000)
        ids = (str(uuid.uuid4()).encode() for _ in range(batch))
        client.lpush("celery", *(raw.replace(name, new) for new in ids))
        count -= batch


def held(client: Any) -> int:
    """How many jobs are held aside."""
    keys = list(client.scan_iter("superfetch:held:*", count=1000))
    return sum(cast("int", client.hlen(key)) for key in keys)


def through(what: str, ear: Ear, act: Callable[[], object], done: Callable[[], object]) -> None:
    """Do something, wait until the worker has got over it, and print how long it was not heard."""
    ear.begin()
    began = time.monotonic()
    act()
    eventually(done, PATIENCE, every=0.2, message=what)
    time.sleep(3 * INTERVAL)
    took = time.monotonic() - began
    print(f"{what:24} {ear.longest:8.2f} s unheard at most, in {took:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--held", type=int, default=30_000, help="jobs")
    parser.add_argument("--package", help="a directory with another celery_superfetch")
    parser.add_argument("--without-gc", action="store_true", help="in the worker")
    args = parser.parse_args()
    with Server(databases=LEDGER_DB + 1) as server, tempfile.TemporaryDirectory() as directory:
        client = server.client()
        env = app_env(
            server.url(),
            ledger_url=server.url(LEDGER_DB),
            options={"heartbeat_interval": INTERVAL},
        )
        app = build_app({**env, "SUPERFETCH": "0"})
        one = sample(app, client)
        if args.package:
            env["PYTHONPATH"] = os.pathsep.join([args.package, str(TESTS)])
        worker = Worker(
            env,
            concurrency=2,
            directory=Path(directory),
            loglevel="WARNING",
            program=("-c", WITHOUT_GC) if args.without_gc else ("-m", "celery"),
        )
        ear = Ear(server)
        try:
            eventually(lambda: client.zcard("superfetch:owners"))
            # With something that runs its owner stays, whatever becomes of the connections.
            app.tasks["shop.hold"].delay("running", 86400.0)
            eventually(lambda: client.keys("superfetch:running:*"))
            ear.start()

            def all_again() -> bool:
                return held(client) == args.held and not client.llen("celery")

            def break_connections() -> None:
                before = client.llen("celery")
                kill_connections(client)
                eventually(lambda: client.llen("celery") > before or not all_again(), PATIENCE)

            def forget_and_break() -> None:
                client.script_flush()
                break_connections()

            through("reception", ear, lambda: fill(client, one, args.held), all_again)
            through("connections lost", ear, break_connections, all_again)
            through("scripts forgotten, too", ear, forget_and_break, all_again)
            print(f"{len(ear.names)} owner(s): {'as it should be' if len(ear.names) == 1 else '!'}")
        finally:
            ear.over.set()
            worker.kill9_all()
            worker.close()
            app.close()


if __name__ == "__main__":
    main()
