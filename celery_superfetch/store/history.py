"""Events that were counted or noted: counters, owners' latest deaths, the last pass, beat's ticks.
Passes, owners and beat write here; ``inspector.py`` reads it for ``status`` and metrics. No job
depends on it: if the process dies before a write, a count or a row is missing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from math import inf
from time import monotonic
from typing import Any, NamedTuple

from ..model.dead_job import utc
from ..model.job import Job, parse
from ..model.process import ProcessImage
from ..model.records import parsed_json, real, text_of, whole
from .database import Structure

#: Days and number of deaths that are remembered.
DAYS = 7
MOST = 1000

#: Seconds without a loss of the server's after which later losses are another event.
LOSS_PAUSE_S = 3600

DATA_LOSS = "data lost\tat"  # field of ``superfetch:stats``

TAB = "\t"  # between the parts of a counter's name; a total has none

#: Upper bounds of what recoveries took (s), from the last heartbeat of a dead owner until its jobs
#: were back. A death on one host is seen within seconds, one elsewhere by its connections, or after
#: ``owner_ttl``.
BUCKETS = (*map(float, (1, 2, 5, 10, 15, 30, 60, 90, 120, 300, 900, 3600)), inf)


class Times(NamedTuple):
    """How long something took, as a histogram has it."""

    buckets: dict[float, int]  # upper bound (s; the last one is infinite) -> what took no longer
    seconds: float  # all together

    @classmethod
    def read(cls, bounds: Sequence[float], numbers: Mapping[str, int], seconds: float) -> Times:
        sums = accumulate(numbers.get(f"{bound:g}", 0) for bound in bounds)
        return cls(dict(zip(bounds, sums, strict=True)), seconds)


class Losses(NamedTuple):
    """The latest event in which the server lost jobs: losses without an hour between them."""

    jobs: int
    since: int  # server ms of the first of them, as a worker found it; 0: there was none
    last: int  # server ms of the last one; 0: there was none


NO_LOSSES = Losses(0, 0, 0)


class Counts(NamedTuple):
    """All counters of ``superfetch:stats``."""

    totals: dict[str, int]
    #: (event, queue list, task) -> jobs; the events are ``recovered``, ``killed``, ``requeued``,
    #: ``ownership_lost`` and ``lost``.
    #: What was one too many is under an empty task, and beyond that under an empty list.
    jobs: dict[tuple[str, str, str], int]
    passes: dict[str, int]  # ``number``, ``ms``, ``owners`` and ``errors`` of all passes
    recoveries: Times
    losses: Losses = NO_LOSSES
    data_loss: int = 0  # server ms at which an owner last found itself forgotten; 0: none did


class History(Structure):
    """``superfetch:stats``, most of which scripts count, ``superfetch:deaths``, ``superfetch:pass``
    and ``superfetch:beats``: for ``status`` and metrics."""

    def lost(self, job: Job) -> None:
        """Count a job whose owner lost it to another."""
        self._lost("ownership_lost", [job])

    def lost_by_server(self, jobs: Sequence[Job]) -> None:
        """Count jobs that the server lost before they had run, and note that it is now."""
        self._lost("lost", jobs)

    def _lost(self, event: str, jobs: Sequence[Job]) -> None:
        args: list[Any] = [event, LOSS_PAUSE_S * 1000]
        for job in jobs:
            args += [job.queue_list, self.database.counted_as(parse(job.payload).task)]
        self.scripts.run("lost", [self.keys.stats, self.keys.stats_rows], args)

    def lost_data(self) -> None:
        """Record that the server no longer knew an owner that lives, and that it is now."""
        self.client.hset(self.keys.stats, DATA_LOSS, self.database.server_time())

    def died(self, deaths: Sequence[tuple[float, dict[str, Any]]]) -> None:
        """Record the owners that a pass found dead, each with the moment (``monotonic``) at which
        its jobs were back; remove deaths that are too old, or too many."""
        now, since = self.database.server_time(), monotonic()
        key = self.keys.deaths
        with self.client.pipeline(transaction=False) as pipe:
            for done, death in deaths:
                at = now - int((since - done) * 1000)  # not before it was heard last
                pipe.zadd(key, {json.dumps({"at": at, **death}): at})
                if death.get("recovered", 0) + death.get("killed", 0):
                    for field, growth in noted_recovery(max(0, at - death["heard"])):
                        pipe.hincrby(self.keys.stats, field, growth)
            pipe.zremrangebyscore(key, "-inf", now - DAYS * 86_400_000)
            pipe.zremrangebyrank(key, 0, -MOST - 1)
            pipe.pexpire(key, DAYS * 86_400_000)
            pipe.execute()

    def deaths(self, most: int = MOST) -> list[dict[str, Any]]:
        """Return the latest deaths of owners, the newest first."""
        # From the other end: redis-py's ``desc`` would be ZREVRANGE, one more to be allowed.
        rows = self.client.zrange(self.keys.deaths, -most, -1)[::-1]
        return [death for row in rows if (death := _death(parsed_json(row, dict[str, Any]())))]

    def passed(self, summary: Mapping[str, Any]) -> None:
        """Record a pass as the last one, with the ``summary`` of it, and count it."""
        fields = [part for pair in summary.items() for part in pair]
        names = [self.keys.last_pass, self.keys.stats, self.keys.stats_rows]
        self.scripts.run("passed", names, [DAYS * 86_400_000, *fields])

    def last_pass(self) -> Mapping[str, str]:
        """Return the ``summary`` of the last pass; empty if there was none within a week."""
        row = self.client.hgetall(self.keys.last_pass)
        texts = ((name.decode(errors="replace"), value) for name, value in row.items())
        return {name: value.decode(errors="replace") for name, value in texts}

    def tick(self, last: int) -> int:
        """Record a tick of this app's beat, whose last one was at ``last`` (server ms; 0: there was
        none); return the time of this one. A week after its last tick a beat is forgotten."""
        key, here, now = self.keys.beats, ProcessImage.current(), self.database.server_time()
        row = json.dumps([now, (now - last) / 1000 if last else 0.0, here.host, here.pid])
        self._at_once([("HSET", key, self.config.app_name, row), ("EXPIRE", key, DAYS * 86_400)])
        return now

    def beats(self) -> list[dict[str, Any]]:
        """Return for each app the beat that ticked last, with the seconds between its last
        ticks."""
        beats = []
        for app, row in sorted(self.client.hgetall(self.keys.beats).items()):
            parts = parsed_json(row, list[Any]())
            if len(parts) != 4:
                continue
            at, interval, host, pid = parts
            process = {
                "app": app.decode(errors="replace"),
                "host": text_of(host),
                "pid": whole(pid),
            }
            beats.append({**process, "at": utc(whole(at) / 1000), "interval": real(interval)})
        return beats

    def counts(self) -> Counts:
        """Return all counters: some thousands at most (``shared.lua``)."""
        fields = self.client.hgetall(self.keys.stats)
        rows = {
            tuple(k.decode(errors="replace").split(TAB, 2)): whole(v) for k, v in fields.items()
        }
        times = {name[1]: n for name, n in rows.items() if name[0] == "recovery" and name[1:]}
        return Counts(
            {name[0]: n for name, n in sorted(rows.items()) if len(name) == 1},
            {(event, *parts): n for (event, *parts), n in sorted(rows.items()) if len(parts) == 2},
            {name[1]: n for name, n in rows.items() if name[0] == "pass" and name[1:]},
            Times.read(BUCKETS, times, times.get("ms", 0) / 1000),
            Losses(*(rows.get(("lost", part), 0) for part in ("lately", "since", "at"))),
            rows.get(tuple(DATA_LOSS.split(TAB)), 0),
        )


#: What a row of the history of deaths has, as text and as whole numbers.
DEATH_TEXTS = "owner", "host", "app", "reason", "node", "state"
DEATH_NUMBERS = "at", "pid", "recovered", "killed", "heard"


def _death(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the history of deaths; empty where it does not say when that was."""
    if not whole(row.get("at")):
        return {}
    return {
        **{name: text_of(row.get(name)) for name in DEATH_TEXTS},
        **{name: whole(row.get(name)) for name in DEATH_NUMBERS},
    }


def noted_recovery(ms: int) -> Iterator[tuple[str, int]]:
    """The counters of a recovery that took so long, and by how much they grow."""
    bound = next(bound for bound in BUCKETS if ms <= bound * 1000)
    yield f"recovery{TAB}{bound:g}", 1
    yield f"recovery{TAB}ms", ms
