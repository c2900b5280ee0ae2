"""A job that makes its worker stop looks like one that a deploy cuts short: its loop ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis

from support.apps.build import build_app
from support.process import Process
from support.servers.database import Database
from support.servers.ledger import LEDGER_DB, Ledger
from support.servers.server import Server
from support.waiting import eventually
from support.workers.worker import Supervisor, Worker, app_env

STOPS, STRIKES = 3, 3
OPTIONS = {"heartbeat_interval": 1, "owner_ttl": 20, "reap_interval": 1, "stop_limit": STOPS}
GOOD = [f"good-{n}" for n in range(20)]


@dataclass
class Case:
    """One job that stops its worker by ``how``, and twenty good ones behind it."""

    pool: str
    how: str
    strikes: int = 0  # that end it; 0: its stops do
    conf: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.pool}: {self.how} {self.conf or self.env or ''}"


class Play:
    """A case with a server of its own, and a worker that is started again and again."""

    def __init__(
        self,
        case: Case,
        server: Server,
        directory: Path,
        options: Any,
        remember: Callable[[Process], None],
    ) -> None:
        self.case = case
        self.client = redis.Redis.from_url(server.url())
        self.ledger, self.db = Ledger(server.url(LEDGER_DB)), Database(self.client)
        about = {"ledger_url": self.ledger.url, "conf": case.conf}
        env = app_env(server.url(), options=options, **about)
        self.app = build_app({**env, "SUPERFETCH": "0"})
        self.app.send_task("stopping.stop", ("bad", case.how))
        for name in GOOD:
            self.app.send_task("shop.note", (name,))
        self.workers: list[Worker] = []

        def start() -> Worker:
            concurrency = 1 if case.pool == "solo" else 2
            how = {"pool": case.pool, "concurrency": concurrency, "directory": directory}
            self.workers.append(Worker({**env, **case.env}, app="stopping", **how))
            remember(self.workers[-1])
            return self.workers[-1]

        self.supervisor = Supervisor(start)

    def __str__(self) -> str:
        missing = set(GOOD) - set(self.ledger.finishes())
        where = f"waiting {self.db.waiting()}, held {self.db.held()}, missing {missing}"
        return f"{self.case}: {self.ledger.runs().get('bad')} runs, {where}"

    def look(self, done: Callable[[Play], object]) -> bool:
        """Start the worker again if it has ended; whether it is done."""
        if not self.supervisor.worker.alive():
            self.supervisor.worker = self.supervisor._start()
        return bool(done(self))

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.app.close()
        self.ledger.close()
        self.client.close()


@pytest.fixture
def plays(
    fresh_server: Callable[..., Server], remember: Callable[[Process], None], tmp_path: Path
) -> Iterator[Callable[..., list[Play]]]:
    """`plays(cases)`: all of them at once."""
    with ExitStack() as stack:

        def start(cases: Sequence[Case], **options: Any) -> list[Play]:
            made = []
            for case in cases:
                play = Play(case, fresh_server(), tmp_path, {**OPTIONS, **options}, remember)
                stack.callback(play.close)
                made.append(play)
            return made

        yield start


def until_all(plays: list[Play], done: Callable[[Play], object], within: float = 120.0) -> None:
    """Until all plays are done, whose workers are started again meanwhile."""

    def none_left() -> bool:
        left = [str(play) for play in plays if not play.look(done)]
        if left:
            raise AssertionError(f"not over: {left}")
        return True

    eventually(none_left, within)


def all_over(plays: list[Play]) -> None:
    """Until each bad job is dead and each good one has run."""
    until_all(plays, lambda play: play.db.dead() and set(GOOD) <= set(play.ledger.finishes()))


def judge(play: Play) -> None:
    """The bad job ran as often as it may, each good one ran, and nothing is left."""
    case, runs = play.case, play.ledger.runs()
    most = case.strikes or STOPS
    assert runs.pop("bad") == most, case
    assert set(runs) == set(GOOD), case
    assert max(runs.values()) <= most, (case, runs)
    [record] = play.db.dead()
    strikes = [entry["strike"] or entry.get("stop") for entry in record["history"]]
    if case.strikes:
        assert strikes == ["exact"] * STRIKES, case
        assert (record["strikes"], record["stops"]) == (STRIKES, 0), case
    else:
        assert strikes == [True] * STOPS, case
        assert (record["strikes"], record["stops"]) == (0, STOPS), case
        assert record["reason"].startswith(f"{STOPS} of its runs were cut short"), case
    eventually(lambda: not play.db.waiting() and not play.db.running(), message=str(case))


SIGNALS = [
    Case("prefork", "quit"),
    Case("solo", "quit"),
    Case("gevent", "quit"),
    Case("prefork", "int twice"),
    Case("solo", "int twice"),
    Case("gevent", "int twice"),
]
OTHERS = [
    Case("prefork", "quit the group"),
    Case("prefork", "int twice the group"),
    Case("prefork", "term the group"),
    Case("prefork", "term", env={"REMAP_SIGTERM": "SIGQUIT"}),
    Case("prefork", "quit", conf={"worker_soft_shutdown_timeout": 0.5}),
    Case("prefork", "shutdown, and a crash"),
    Case("threads", "shutdown, and a crash"),
]
RAISES = [
    Case(pool, how, strikes=STRIKES)
    for pool in ("prefork", "threads", "solo", "gevent")
    for how in ("WorkerShutdown", "WorkerTerminate")
]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("cases", [SIGNALS, OTHERS], ids=["its worker", "others"])
def test_a_job_that_makes_its_worker_stop_is_killed_at_its_last_stop(plays, cases):
    started = plays(cases)
    all_over(started)
    for play in started:
        judge(play)


@pytest.mark.timeout(240)
def test_what_a_task_raises_to_stop_its_worker_is_its_own_doing(plays):
    """On solo and gevent its worker ends by it, on prefork its process, and on threads neither."""
    started = plays(RAISES)
    all_over(started)
    for play in started:
        judge(play)


def test_without_the_count_of_stops_it_goes_on(plays):
    """The control."""
    cases = [Case("prefork", "quit", env={"WITHOUT": "stops"}), Case("solo", "quit")]
    cases[1].env["WITHOUT"] = "stops"
    started = plays(cases)

    def goes_on(play: Play) -> bool:
        return play.ledger.runs().get("bad", 0) > STOPS + 1

    until_all(started, goes_on)
    assert not [play.db.dead() for play in started if play.db.dead()]
    assert not started[1].ledger.finishes(), "on solo no good one has run"
