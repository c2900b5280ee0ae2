"""A worker of every pool on a server of their own, behind a network that fails on demand."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.apps.build import build_app
from support.servers.database import Database
from support.servers.faults import kill_connections
from support.servers.ledger import Ledger
from support.servers.proxy import FaultProxy
from support.servers.server import Server
from support.waiting import eventually
from support.workers.load import Load
from support.workers.worker import Worker, app_env

#: Pool -> its size. Each worker serves the queue of its pool's name.
POOLS = {"prefork": 2, "threads": 2, "solo": 1, "gevent": 4}

OPTIONS = {"heartbeat_interval": 1, "owner_ttl": 10, "reap_interval": 1}

#: Seconds after which a connection that does not answer is given up.
SOCKET_TIMEOUT = 3.0

#: Kinds of keys that hold jobs in flight.
FLYING = ("private", "landing", "parked")


class Fleet:
    """Use as a context manager. Publishers reach the server directly, workers by the proxy.

    Arguments:
        books: URL of the server for results (database 0), and the ledger.
        conf: Celery settings of the workers.
    """

    def __init__(
        self,
        books: str,
        ledger: Ledger,
        directory: Path,
        *,
        pools: Mapping[str, int] = POOLS,
        conf: Mapping[str, Any] | None = None,
        superfetch: bool = True,
        app: str = "shop",
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.ledger = ledger
        self.pools = pools
        self.workers: dict[str, Worker] = {}
        self._books = books
        self._directory = directory
        self._conf = {
            "broker_transport_options": {"socket_timeout": SOCKET_TIMEOUT},
            **(conf or {}),
        }
        self._superfetch = superfetch
        self._app = app
        self._env = env or {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Fleet:
        with contextlib.ExitStack() as stack:
            self.server = stack.enter_context(Server(appendonly=True, appendfsync="always"))
            self.proxy = stack.enter_context(FaultProxy(self.server.port))
            self.db = Database(self.server.client())
            common = {"ledger_url": self.ledger.url, "result_url": self._books}
            publisher = app_env(self.server.url(), superfetch=False, **common)
            self.app = build_app({**publisher, "RESULT_URL": ""})  # it waits for no results
            env = app_env(
                self.proxy.url(),
                superfetch=self._superfetch,
                options=OPTIONS if self._superfetch else {},
                conf=self._conf,
                **common,
            )
            for pool, size in self.pools.items():
                self.workers[pool] = stack.enter_context(
                    Worker(
                        {**env, **self._env},
                        app=self._app,
                        pool=pool,
                        concurrency=size,
                        name=pool,
                        queues=[pool],
                        directory=self._directory,
                    )
                )
            for one in self.workers.values():
                one.wait_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self.app.close()

    def load(self, name: str, seed: int = 1, every: float = 0.03) -> Load:
        """Jobs for all pools; in each that can do more than one thing, one runs throughout."""
        load = Load(self.app, self.ledger, list(self.pools), name=name, seed=seed, every=every)
        for pool in self.pools:
            if pool != "solo":
                load.hold(pool)
        return load

    def left(self) -> dict[str, str]:
        """What waits or is in flight, key by key: looked for in one step, as jobs move in one."""
        with self.db.client.pipeline(transaction=True) as pipe:
            for pattern in (*self.pools, *(f"superfetch:{own}:*" for own in FLYING)):
                pipe.keys(pattern)
            names = {key.decode() for keys in pipe.execute() for key in keys}
        return {name: str(self.db.contents(name))[:300] for name in sorted(names)}

    def at_rest(self) -> bool:
        """Nothing waits, and nothing is in flight; else it fails and names what there is."""
        assert not self.left(), self.left()
        return True

    def check(self, load: Load, within: float = 60.0, *, answers: bool = True) -> None:
        """Every job has run once, nothing is left, and nobody was restarted or robbed.

        Arguments:
            answers: whether remote control must work by now.
        """
        account = load.settle(within)
        assert account.clean, account
        eventually(self.at_rest, message=f"nothing is left of {account}")
        assert self.db.stat("owners_reaped") == 0
        owners = {owner: self.db.fact(owner, "node") for owner in self.db.owners()}
        assert len(owners) == len(self.workers), f"not one owner for each worker: {owners}"
        assert all(one.alive() for one in self.workers.values())
        if answers:
            eventually(self.answers, message="remote control reaches everybody")

    def answers(self, command: str = "ping") -> dict[str, Any]:
        """What each worker's remote control says, by pool; it has connections of its own.

        Just after a loss nobody listens yet. And Celery's remote control of greenlets ends when
        its own connection breaks and the consumer's does not (it was just connecting): it
        begins anew with the consumer's next.
        """
        said: dict[str, Any] = {}
        for _ in range(3):
            with self.app.connection_for_write() as fresh:  # a reply queue expires, unnoticed
                replies = self.app.control.broadcast(
                    command, reply=True, timeout=2, limit=len(self.workers), connection=fresh
                )
            rows = {name: row for reply in replies or () for name, row in reply.items()}
            said = {name.partition("@")[0]: row for name, row in rows.items()}
            if set(said) == set(self.workers):
                return said
        kill_connections(self.server.client())
        raise AssertionError(f"no answer from {set(self.workers) - set(said)}")
