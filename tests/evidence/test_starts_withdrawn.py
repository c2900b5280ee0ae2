"""Permits to start jobs are withdrawn at random: by a worker, a pool process or a server that is
stopped, by a server that answers nobody, and by one that is full.

For the figures of a release: ``--starts 1000`` (about two minutes for each pool)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.servers.database import Database
from support.waiting import eventually

SLOTS = {"prefork": 3, "threads": 3, "solo": 1, "gevent": 3}
BATCH = 25  # jobs that are sent before each harm
LONGEST = 2.4  # s of a harm; a permit of these workers lasts 1.5 s


class Harms:
    """What withdraws the permits of one worker."""

    def __init__(self, worker: Any, server: Any, pool: str) -> None:
        self.worker, self.server, self.client = worker, server, server.client()
        self.all: list[Callable[[], AbstractContextManager[object]]] = [
            worker.frozen,
            self.stopped_server,
            self.silent_server,
            self.full_server,
        ]
        if pool == "prefork":
            self.all += [self.stopped_child] * 4

    def befall(self, send: Callable[[], object], only: str) -> None:
        """Let one of them happen while jobs wait; ``only``: this one, as long as may be."""
        harm = getattr(self, only) if only else random.choice(self.all)
        is_of_worker = harm in (self.worker.frozen, self.stopped_child)
        if not is_of_worker:  # a server that is stopped takes no job
            send()
        with harm():
            if is_of_worker:
                send()
            time.sleep(LONGEST if only else random.uniform(0.2, LONGEST))

    @contextmanager
    def stopped_server(self) -> Iterator[None]:
        self.server.pause()
        yield
        self.server.resume()

    @contextmanager
    def silent_server(self) -> Iterator[None]:
        self.client.client_pause(round(1000 * LONGEST))
        yield
        self.client.client_unpause()

    @contextmanager
    def full_server(self) -> Iterator[None]:
        self.client.config_set("maxmemory", 1)
        yield
        self.client.config_set("maxmemory", 0)

    @contextmanager
    def stopped_child(self) -> Iterator[None]:
        child = random.choice(self.worker.children())
        child.suspend()
        yield
        child.resume()


@pytest.fixture
def withdrawn(
    fresh_server: Any, make_app: Any, worker: Any, ledger: Any, tmp_path: Path, request: Any
) -> Callable[..., list[str]]:
    """`withdrawn(pool)`: the lines of all starts, after each job has run."""

    def run(pool: str, without: str = "", only: str = "") -> list[str]:
        seed = request.config.getoption("--seed") or random.randrange(2**32)
        print(f"--seed {seed}")
        random.seed(seed)
        server, starts = fresh_server(), tmp_path / "starts"
        app = make_app(superfetch=False, url=server.url())
        env = {"HAPPENS": "watched_starts", "WITHOUT": without, "STARTS": str(starts)}
        options = {"heartbeat_interval": 1, "owner_ttl": 600}
        place = {"url": server.url(), "result_url": "", "options": options}
        one = worker(env=env, pool=pool, concurrency=SLOTS[pool], **place)
        note = app.tasks["shop.note"]
        harms, count = Harms(one, server, pool), request.config.getoption("--starts")
        jobs = [f"job-{number}" for number in range(count)]
        for at in range(0, count, BATCH):
            batch = jobs[at : at + BATCH]
            harms.befall(lambda batch=batch: [note.delay(job) for job in batch], only)
        db = Database(server.client())
        eventually(lambda: len(ledger.finishes()) == count, 60, message="none is lost")
        eventually(db.settled)
        assert ledger.runs() == dict.fromkeys(jobs, 1)
        lasts = [f"last-{number}" for number in range(SLOTS[pool])]
        for job in lasts:
            app.tasks["shop.hold"].delay(job)
        eventually(lambda: set(lasts) <= set(ledger.starts()), message="each slot runs again")
        ledger.release()
        eventually(db.settled)
        lines = starts.read_text().splitlines()
        late = sum(line != "again" and float(line) < 0 for line in lines)
        print(f"{pool}: {count} jobs, {late} begun too late, {lines.count('again')} begun again")
        return lines

    return run


@pytest.mark.parametrize("pool", SLOTS)
def test_no_job_begins_past_its_deadline_and_no_job_or_slot_is_lost(withdrawn, pool):
    lines = withdrawn(pool)
    assert min(float(line) for line in lines if line != "again") > 0


def test_the_control_begins_past_deadlines(withdrawn):
    lines = withdrawn("prefork", "deadlines", only="stopped_child")
    assert min(float(line) for line in lines if line != "again") < 0
