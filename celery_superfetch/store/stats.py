"""Statistics for `status` and metrics: event counters, the latest deaths of owners, the summary of
the last pass of any reaper, the last tick of each app's beat. (``strike_counters.py`` has the
*history* of one job.)

An *owner* is a process that claims jobs, a *reaper* finds dead owners and recovers their jobs, and
a *pass* is one run of a reaper. Reapers write deaths (``record_deaths``) and summaries
(``record_pass``), in a worker's maintenance thread, in the task that beat sends, or in a command.
An owner counts the jobs that it lost (``record_ownership_lost``, ``record_lost_by_server``) and the
loss of its own keys (``record_data_loss``), in its worker's main process. Beat's process writes its
tick (``record_tick``). Most counters are written by the Lua scripts that move jobs. The console
reads all of it through ``inspector.py``.

No job depends on it: if the process dies before or within a write, a count or a row is missing. If
it dies after it has made a key and before it has set the key's expiry, the next write sets it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain
from math import inf
from time import monotonic
from typing import Any, NamedTuple

from ..model.dead_job import utc
from ..model.job import Job, parse
from ..model.process import ProcessImage
from ..model.records import parsed_json, real, text_of, whole
from .database import Structure, chunks
from .redis.call import Call

DEATHS_DAYS = 7  # for which deaths, the last pass and beat's ticks are remembered
DEATHS_MAX = 1000  # deaths that are remembered at most

#: Queue lists whose waiting jobs one script counts for the charts.
WAITING_PER_SCRIPT = 200

#: The server may lose jobs, if it restarts without its latest data, say. If less time (s) than this
#: is between two losses, they count as one event.
LOSS_PAUSE_S = 3600

#: Field of ``superfetch:stats``: server ms of the last call of ``record_data_loss``. Its two parts
#: are separated as ``TAB`` says.
DATA_LOSS = "data lost\tat"

TAB = "\t"  # between the parts of a counter's name; the name of a total has no TAB

#: Upper bounds (s) of the histogram of recoveries: the time from the last heartbeat of a dead owner
#: until its jobs were back. A peer on the owner's host sees its death within seconds. A peer on
#: another host sees it when the server has no connection of it any more, or after ``owner_ttl``.
RECOVERY_BUCKETS = (*map(float, (1, 2, 5, 10, 15, 30, 60, 90, 120, 300, 900, 3600)), inf)


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
    #: ``ownership_lost`` and ``lost``. The number of rows is limited: beyond the
    #: limit jobs are counted under an empty task, and beyond a second limit under an empty queue
    #: list as well.
    jobs: dict[tuple[str, str, str], int]
    passes: dict[str, int]  # ``number``, ``ms``, ``owners`` and ``errors`` of all passes
    recoveries: Times
    losses: Losses = NO_LOSSES
    #: Server ms at which an owner last found that the server did not know it; 0: none has.
    data_loss: int = 0


class Stats(Structure):
    """The keys ``superfetch:stats``, ``superfetch:deaths``, ``superfetch:last_pass`` and
    ``superfetch:beats``."""

    def record_ownership_lost(self, job: Job) -> None:
        """Count a job that its owner no longer has, although the owner is alive: a reaper recovered
        the job, say. The job may run twice."""
        self._lost("ownership_lost", [job])

    def record_lost_by_server(self, jobs: Sequence[Job]) -> None:
        """Count jobs that are gone from the server although they were not acked: they have not run,
        or their run ended without an ack. The script stores when the first and when the last of
        them was found (``Losses``)."""
        self._lost("lost", jobs)

    def _lost(self, event: str, jobs: Sequence[Job]) -> None:
        args: list[Any] = [event, LOSS_PAUSE_S * 1000]
        for job in jobs:
            args += [job.queue_list, self.database.counted_as(parse(job.payload).task)]
        self.scripts.run("lost", [self.keys.stats, self.keys.stats_rows], args)

    def record_data_loss(self) -> None:
        """Record the time at which the server no longer knew an owner that is alive, since the
        owner's keys were flushed, deleted or evicted: other data may be gone as well."""
        self.client.hset(self.keys.stats, DATA_LOSS, self.database.server_time())

    def record_deaths(self, deaths: Sequence[tuple[float, dict[str, Any]]]) -> None:
        """Record the owners that a pass found dead; remove deaths that are too old, or too many. It
        can be repeated with the same rows: those that the server has are not counted again.

        Arguments:
            deaths: for each owner the time (``monotonic``) at which its jobs were back on their
                queues, and its row (``DEATH_TEXTS``, ``DEATH_NUMBERS``). The row gets its ``at``
                here, at the first try: with another one a repeated row would be a second death.
        """
        now, monotonic_now = self.database.server_time(), monotonic()
        key = self.keys.deaths
        rows = []
        for done, death in deaths:
            death.setdefault("at", now - int((monotonic_now - done) * 1000))
            rows.append((json.dumps(death), death))
        scores = self._at_once([("ZSCORE", key, text) for text, _ in rows])
        # A transaction: if it is refused, nothing was written; if its reply is lost, the next try
        # finds by its rows whether their recoveries were counted.
        with self.client.pipeline(transaction=True) as pipe:
            for (text, death), score in zip(rows, scores, strict=True):
                if score is not None:
                    continue
                at = death["at"]
                pipe.zadd(key, {text: at})
                if death.get("recovered", 0) + death.get("killed", 0):
                    for field, growth in recovery_counters(max(0, at - death["last_heartbeat"])):
                        pipe.hincrby(self.keys.stats, field, growth)
            pipe.zremrangebyscore(key, "-inf", now - DEATHS_DAYS * 86_400_000)
            pipe.zremrangebyrank(key, 0, -DEATHS_MAX - 1)
            pipe.pexpire(key, DEATHS_DAYS * 86_400_000)
            pipe.execute()

    def deaths(self, most: int = DEATHS_MAX) -> list[dict[str, Any]]:
        """Return the latest deaths of owners, the newest first."""
        # By negative ranks: with ``desc`` redis-py would send ZREVRANGE, and users' ACLs would have
        # to allow one more command.
        rows = self._read(self.client.zrange, self.keys.deaths, -most, -1, empty=[])[::-1]
        return [death for row in rows if (death := _death(parsed_json(row, dict[str, Any]())))]

    def record_pass(self, summary: Mapping[str, Any], waiting: Mapping[str, int]) -> None:
        """Record a reaper's pass as the last one, with its ``summary``, and count it. ``waiting``:
        queue list -> jobs that wait on it, for the charts."""
        fields = [part for pair in summary.items() for part in pair]
        charts = [self.keys.minutes, self.keys.minute_rows]
        names = [self.keys.last_pass, self.keys.stats, self.keys.stats_rows, *charts]
        calls = [
            Call("waiting", charts, [*chain.from_iterable(some)])
            for some in chunks([*waiting.items()], WAITING_PER_SCRIPT)
        ]
        args = [DEATHS_DAYS * 86_400_000, sum(waiting.values()), *fields]
        self.scripts.run_all([*calls, Call("passed", names, args)])

    def last_pass(self) -> Mapping[str, str]:
        """Return the ``summary`` of the last pass; empty if there was none within a week."""
        row = self._read(self.client.hgetall, self.keys.last_pass, empty={})
        texts = ((name.decode(errors="replace"), value) for name, value in row.items())
        return {name: value.decode(errors="replace") for name, value in texts}

    def record_tick(self, last: int) -> int:
        """Record a tick of this app's beat, which is about to send the reap task. ``last``: server
        ms of the tick before (0: there was none). Return the server ms of this tick. If no beat of
        any app ticks for a week, the key expires, with the ticks of all apps."""
        key, here, now = self.keys.beats, ProcessImage.current(), self.database.server_time()
        row = json.dumps([now, (now - last) / 1000 if last else 0.0, here.host, here.pid])
        self._at_once(
            [("HSET", key, self.config.app_name, row), ("EXPIRE", key, DEATHS_DAYS * 86_400)]
        )
        return now

    def beats(self) -> list[dict[str, Any]]:
        """Return for each app the beat that ticked last, with the seconds between its last two
        ticks."""
        beats = []
        rows = self._read(self.client.hgetall, self.keys.beats, empty={})
        for app, row in sorted(rows.items()):
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
        """Return all counters: some thousands at most, since the scripts limit the rows
        (``lua/shared.lua``)."""
        fields = self._read(self.client.hgetall, self.keys.stats, empty={})
        rows = {
            tuple(k.decode(errors="replace").split(TAB, 2)): whole(v) for k, v in fields.items()
        }
        # ``name[1:]`` is empty for a total, which could have the same name.
        times = {name[1]: n for name, n in rows.items() if name[0] == "recovery" and name[1:]}
        return Counts(
            {name[0]: n for name, n in sorted(rows.items()) if len(name) == 1},
            {(event, *parts): n for (event, *parts), n in sorted(rows.items()) if len(parts) == 2},
            {name[1]: n for name, n in rows.items() if name[0] == "pass" and name[1:]},
            Times.read(RECOVERY_BUCKETS, times, times.get("ms", 0) / 1000),
            Losses(*(rows.get(("lost", part), 0) for part in ("lately", "since", "at"))),
            rows.get(tuple(DATA_LOSS.split(TAB)), 0),
        )


#: Fields of a row of the history of deaths: texts, and whole numbers. ``last_heartbeat`` is the
#: server ms of the owner's last heartbeat, ``at`` that of its death's record.
DEATH_TEXTS = "owner", "host", "app", "reason", "node", "state"
DEATH_NUMBERS = "at", "pid", "recovered", "killed", "last_heartbeat"


def _death(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the history of deaths with all its fields; empty if it has no time."""
    if not whole(row.get("at")):
        return {}
    return {
        **{name: text_of(row.get(name)) for name in DEATH_TEXTS},
        **{name: whole(row.get(name)) for name in DEATH_NUMBERS},
    }


def recovery_counters(ms: int) -> Iterator[tuple[str, int]]:
    """Yield the counters that a recovery of this length changes, and by how much each grows."""
    bound = next(bound for bound in RECOVERY_BUCKETS if ms <= bound * 1000)
    yield f"recovery{TAB}{bound:g}", 1
    yield f"recovery{TAB}ms", ms
