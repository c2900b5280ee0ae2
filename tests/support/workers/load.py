"""Jobs that keep coming while something goes wrong, and the account of them afterwards."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from celery import Celery
from celery.utils import uuid

from support.servers.ledger import Ledger
from support.waiting import eventually

#: Job kind -> (how many of a hundred, seconds it runs, seconds until it is due at most).
MIX = {"short": (80, 0.05, 0.0), "long": (10, 0.8, 0.0), "eta": (10, 0.05, 2.0)}


@dataclass(frozen=True)
class Account:
    """What became of the jobs of one load."""

    published: int
    #: Published for sure and never finished.
    lost: list[str]
    #: Job -> number of its runs, where there were several.
    doubled: dict[str, int]

    @property
    def clean(self) -> bool:
        return not self.lost and not self.doubled

    def __str__(self) -> str:
        """For people: some names of each kind, not thousands."""
        twice = sorted(self.doubled)
        return (
            f"{self.published} published; lost: {len(self.lost)} {self.lost[:8]}; "
            f"run more than once: {len(twice)} {twice[:8]}"
        )


class Load:
    """Publishes to `queues` in turn, from a thread of its own. Use as a context manager.

    The server may refuse or vanish meanwhile. A job whose publishing failed is in doubt (it may
    have arrived): nobody tries it again, so it may run once or not at all. With `retry` Celery's
    own policy tries again, and only then is it in doubt.
    """

    def __init__(
        self,
        app: Celery,
        ledger: Ledger,
        queues: Sequence[str] = ("celery",),
        *,
        every: float = 0.03,
        name: str = "job",
        seed: int = 1,
        retry: bool = False,
    ) -> None:
        self.ledger = ledger
        self.published: list[str] = []
        self.in_doubt: set[str] = set()
        #: Celery's id -> the job.
        self.ids: dict[str, str] = {}
        self._hold: Any = app.tasks["shop.hold"]
        self._queues = queues
        self._every = every
        self._retry = retry
        self._name = name
        self._dice = random.Random(seed)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._publish, name="load", daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Publish no more; returns when the last one is out."""
        self._stopped.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the publisher hangs"

    def hold(self, queue: str, seconds: float = 600.0) -> str:
        """Publish a job that runs until the account is asked for; its name."""
        name = f"{self._name}-{queue}-held"
        self.ids[self._hold.apply_async((name, seconds), queue=queue).id] = name
        self.published.append(name)
        return name

    def _publish(self) -> None:
        number = 0
        while not self._stopped.wait(self._every):
            kind = self._dice.choices(list(MIX), [share for share, _, _ in MIX.values()])[0]
            _, seconds, due = MIX[kind]
            number += 1
            queue = self._queues[number % len(self._queues)]
            name = f"{self._name}-{queue}-{kind}-{number}"
            countdown = {"countdown": self._dice.uniform(0.2, due)} if due else {}
            options = {"task_id": uuid(), "queue": queue, "retry": self._retry, **countdown}
            self.ids[options["task_id"]] = name
            try:
                self._hold.apply_async((name, seconds), **options)
            except Exception:  # whatever broke: it may have arrived all the same
                self.in_doubt.add(name)
            else:
                self.published.append(name)

    # -- the account

    def wait_progress(self, jobs: int = 3, within: float = 30.0) -> None:
        """Until so many more jobs of each queue have begun: everybody works."""

        def begun(queue: str) -> int:
            mine = f"{self._name}-{queue}-"
            return sum(job.startswith(mine) for job in self.ledger.starts())

        goals = {queue: begun(queue) + jobs for queue in self._queues}
        eventually(
            lambda: all(begun(queue) >= goal for queue, goal in goals.items()),
            within,
            message=f"{jobs} more jobs of each of {list(goals)} begin",
        )

    def settle(self, within: float = 60.0) -> Account:
        """Stop, wait until all that was published has run, and give the account."""
        self.stop()
        self.ledger.release()

        def rest() -> list[str]:
            finished = self.ledger.finishes()
            return [job for job in self.published if job not in finished]

        with contextlib.suppress(AssertionError):  # said by the account, by name
            eventually(lambda: not rest(), within, every=0.1)
        starts = self.ledger.starts()
        mine = {*self.published, *self.in_doubt}
        doubled = {job: len(runs) for job, runs in starts.items() if len(runs) > 1 and job in mine}
        return Account(len(self.published), rest(), doubled)
