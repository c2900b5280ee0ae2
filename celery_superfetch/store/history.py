"""Statistics for `status` and metrics: event counters, the latest deaths of owners, the summary of
the last reaper's pass, the last tick of each app's beat. (What is remembered of one job, its
*history*, is in ``counters.py``.)

An *owner* is a process that claims jobs, a *reaper* finds dead owners and recovers their jobs.
Reapers write deaths (``died``) and summaries (``passed``), in a worker's maintenance thread, in the
task that beat sends, or in a command. An owner counts jobs that it lost (``lost``,
``lost_by_server``, ``lost_data``), in its worker's main process. Beat's process writes its tick.
Most counters are written by the Lua scripts that move jobs. The console reads all of it through
``inspector.py``.

No job depends on it: if the process dies before or within a write, a count or a row is missing. If
it dies after it has made a key and before it has set the key's expiry, the next write sets it.
"""

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

DAYS = 7  # for which a death is remembered
MOST = 1000  # deaths that are remembered

#: The server may lose jobs, if it restarts without its latest data, say. Losses with less than so
#: many seconds between them count as one event.
LOSS_PAUSE_S = 3600

DATA_LOSS = "data lost\tat"  # field of ``superfetch:stats``: when ``lost_data`` was called last

TAB = "\t"  # between the parts of a counter's name; the name of a total has no TAB

#: Upper bounds (s) of the histogram of recoveries: the time from the last heartbeat of a dead owner
#: until its jobs were back. A peer on the owner's host sees its death within seconds. A peer on
#: another host sees it when the server has no connection of it any more, or after ``owner_ttl``.
BUCKETS = (*map(float, (1, 2, 5, 10, 15, 30, 60, 90, 120, 300, 900, 3600)), inf)


class Times(NamedTuple):
    """A histogram of durations."""

    #: Upper bound (s; the last one is infinite) -> number of durations up to it (cumulative).
    buckets: dict[float, int]
    seconds: float  # the sum of all durations

    @classmethod
    def read(cls, bounds: Sequence[float], numbers: Mapping[str, int], seconds: float) -> Times:
        sums = accumulate(numbers.get(f"{bound:g}", 0) for bound in bounds)
        return cls(dict(zip(bounds, sums, strict=True)), seconds)


class Losses(NamedTuple):
    """The latest event in which the server lost jobs."""

    jobs: int
    since: int  # server ms at which a worker found the first loss; 0: there was none
    last: int  # server ms at which a worker found the last loss; 0: there was none


NO_LOSSES = Losses(0, 0, 0)


class Counts(NamedTuple):
    """All counters of ``superfetch:stats``."""

    totals: dict[str, int]
    #: (event, queue list, task) -> jobs; the events are ``recovered``, ``killed``, ``requeued``,
    #: ``ownership_lost`` and ``lost``. The number of rows is limited: beyond the limit jobs are
    #: counted under an empty task, and beyond a second limit under an empty queue list as well.
    jobs: dict[tuple[str, str, str], int]
    passes: dict[str, int]  # ``number``, ``ms``, ``owners`` and ``errors`` of all passes
    recoveries: Times
    losses: Losses = NO_LOSSES
    #: Server ms at which an owner last found that the server did not know it; 0: none has.
    data_loss: int = 0


class History(Structure):
    """The keys ``superfetch:stats``, ``superfetch:deaths``, ``superfetch:pass`` and
    ``superfetch:beats``."""

    def lost(self, job: Job) -> None:
        """Count a job whose owner is alive and has lost its ownership: a reaper recovered it, say.
        The job may run twice."""
        self._lost("ownership_lost", [job])

    def lost_by_server(self, jobs: Sequence[Job]) -> None:
        """Count jobs that are gone from the server, and whose owner had not acked them: they have
        not run, or their run ended without an ack. The script stores when the first and when the
        last of them was found (``Losses``)."""
        self._lost("lost", jobs)

    def _lost(self, event: str, jobs: Sequence[Job]) -> None:
        args: list[Any] = [event, LOSS_PAUSE_S * 1000]
        for job in jobs:
            args += [job.queue_list, self.database.counted_as(parse(job.payload).task)]
        self.scripts.run("lost", [self.keys.stats, self.keys.stats_rows], args)

    def lost_data(self) -> None:
        """Record the time at which the server did not know a live owner any more: other data may
        be gone as well."""
        self.client.hset(self.keys.stats, DATA_LOSS, self.database.server_time())

    def died(self, deaths: Sequence[tuple[float, dict[str, Any]]]) -> None:
        """Record the owners that a pass found dead; remove deaths that are too old, or too many.

        Arguments:
            deaths: the time (``monotonic``) at which an owner's jobs were back, and its row.
        """
        now, monotonic_now = self.database.server_time(), monotonic()
        key = self.keys.deaths
        with self.client.pipeline(transaction=False) as pipe:
            for done, death in deaths:
                at = now - int((monotonic_now - done) * 1000)
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
        # By negative ranks: with ``desc`` redis-py would send ZREVRANGE, and users' ACLs would have
        # to allow one more command.
        rows = self.client.zrange(self.keys.deaths, -most, -1)[::-1]
        return [death for row in rows if (death := _death(parsed_json(row, dict[str, Any]())))]

    def passed(self, summary: Mapping[str, Any]) -> None:
        """Record a reaper's pass as the last one, with its ``summary``, and count it."""
        fields = [part for pair in summary.items() for part in pair]
        names = [self.keys.last_pass, self.keys.stats, self.keys.stats_rows]
        self.scripts.run("passed", names, [DAYS * 86_400_000, *fields])

    def last_pass(self) -> Mapping[str, str]:
        """Return the ``summary`` of the last pass; empty if there was none within a week."""
        row = self.client.hgetall(self.keys.last_pass)
        texts = ((name.decode(errors="replace"), value) for name, value in row.items())
        return {name: value.decode(errors="replace") for name, value in texts}

    def tick(self, last: int) -> int:
        """Record a tick of this app's beat: it is about to send the reap task. ``last``: server ms
        of its tick before (0: there was none). Return the server ms of this one. A week after the
        last tick of any app all are forgotten."""
        key, here, now = self.keys.beats, ProcessImage.current(), self.database.server_time()
        row = json.dumps([now, (now - last) / 1000 if last else 0.0, here.host, here.pid])
        self._at_once([("HSET", key, self.config.app_name, row), ("EXPIRE", key, DAYS * 86_400)])
        return now

    def beats(self) -> list[dict[str, Any]]:
        """Return for each app the beat that ticked last, with the seconds between its last two
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
        """Return all counters: some thousands at most, since ``shared.lua`` limits the rows."""
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


#: Fields of a row of the history of deaths: texts, and whole numbers.
DEATH_TEXTS = "owner", "host", "app", "reason", "node", "state"
DEATH_NUMBERS = "at", "pid", "recovered", "killed", "heard"


def _death(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the history of deaths with all its fields; empty if it has no time."""
    if not whole(row.get("at")):
        return {}
    return {
        **{name: text_of(row.get(name)) for name in DEATH_TEXTS},
        **{name: whole(row.get(name)) for name in DEATH_NUMBERS},
    }


def noted_recovery(ms: int) -> Iterator[tuple[str, int]]:
    """Yield the counters that a recovery of this length changes, and by how much each grows."""
    bound = next(bound for bound in BUCKETS if ms <= bound * 1000)
    yield f"recovery{TAB}{bound:g}", 1
    yield f"recovery{TAB}ms", ms
