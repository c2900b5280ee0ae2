"""Strike counters: the history of each job that was recovered, and the scripts that recover or
dead-letter a job by it. The reaper calls them for a dead owner's jobs, and an owner for jobs whose
pool process was lost. Each script is atomic: if the process dies between two calls, the remaining
jobs are still in the private list, and the next pass finds them there."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from ..model.config import ANNOUNCE_TASK
from ..model.job import UNREADABLE, Counters
from ..model.strikes import STOPS_NAMED, STOPS_TO_FRONT, Decision, Recovery
from .database import Database, Structure
from .dead_set import DeadSet
from .wire.scripts import Call

#: Makes the notice of a killed job: the message for its queue list; empty where none can be made.
Notice = Callable[[str], bytes]


class Outcome(NamedTuple):
    """What became of one decision."""

    recovery: Recovery
    #: ``ok``; ``unmarked``, ``moved`` or ``recounted`` where nothing was done, since the owner or
    #: the job's history had changed after the decision; or an error.
    answer: bytes | Exception
    dead_id: bytes = b""  # its id in the dead set, if it was killed
    notice: bytes | None = None  # what tells its caller then; None: nothing does


def _made(notice: Notice | None, recovery: Recovery) -> bytes | None:
    """Return the notice of a job that is to be dead-lettered, as in ``Outcome``."""
    if notice is None or not recovery.parsed:
        return None
    # What killed one notice may kill that of its death, and so on without end.
    return b"" if recovery.task == ANNOUNCE_TASK else notice(recovery.job.queue_list)


def _read(raw: bytes) -> dict[str, str]:
    """Read the record of a stopped job; empty where it is none."""
    try:
        row = json.loads(raw)
        return {name: str(row[name]) for name in ("digest", "task", "id", "queue_list")}
    except UNREADABLE:
        return {}


class StrikeCounters(Structure):
    """Strikes and recoveries of jobs (``superfetch:recoveries:<digest>``), and their recovery."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.dead_set = DeadSet(database)

    def counters(self, digests: Sequence[str]) -> list[Counters]:
        """Return the history of each job by its digest; zeros where it has none."""
        names = [self.keys.recoveries(digest) for digest in digests]
        counts = ("strikes", "recoveries", "history", "probation", "stops", "deaths", "alongside")
        fields = (*counts, "first_claim")
        rows = self.scripts.run("counters", names, fields)
        return [Counters.read(**dict(zip(fields, row, strict=True))) for row in rows]

    def stopped(self) -> list[dict[str, Any]]:
        """Return the unsettled jobs that stops cut short again and again, the worst first: digest,
        task, id, queue_list and stops of each."""
        rows = [_read(raw) for raw in self.client.zrange(self.keys.stopped, 0, -1)]
        by_digest = {row["digest"]: row for row in rows if row}
        known = self.counters([*by_digest]) if by_digest else []
        jobs = [
            {**row, "stops": counters.stops}
            for row, counters in zip(by_digest.values(), known, strict=True)
            if counters.stops >= STOPS_NAMED  # else it was settled since
        ]
        return sorted(jobs, key=lambda job: -job["stops"])

    def carry_out(
        self,
        decided: Sequence[tuple[Recovery, Decision]],
        expires: int,
        *,
        marked: bool,
        notice: Notice | None = None,
    ) -> list[Outcome]:
        """Recover or dead-letter each job as decided, in one round trip; a script refuses a
        decision whose history has changed since. ``notice`` makes the notice of a dead-lettered
        job; the other arguments are those of ``recover``."""
        killed = [recovery for recovery, decision in decided if decision is Decision.KILL]
        spared = [recovery for recovery, decision in decided if decision is Decision.RECOVER]
        notices = [_made(notice, recovery) for recovery in killed]
        calls = [
            self.dead_set.kill(recovery, expires, marked=marked, notice=message)
            for recovery, message in zip(killed, notices, strict=True)
        ]
        if spared:
            # One script for all, so that a waiting consumer finds the oldest in front.
            calls.append(self.recover(spared, expires, marked=marked))
        replies = self.scripts.run_all(calls, errors=True)
        if spared:
            answers = replies.pop()
            replies += answers if isinstance(answers, list) else [answers] * len(spared)
        rows = zip_longest([*killed, *spared], replies, notices)
        return [
            Outcome(recovery, *(reply if isinstance(reply, list) else [reply]))._replace(
                notice=message
            )
            for recovery, reply, message in rows
        ]

    def recover(self, recoveries: Sequence[Recovery], expires: int, *, marked: bool) -> Call:
        """The call that counts jobs of one owner, queue list and reason, the newest claim first,
        and gives each back, to its queue's front or on probation. ``expires``: ms of its x-expires
        (0: none); ``marked``: the owner must be marked reaped (False: it asks for itself)."""
        keys, first, window = self.keys, recoveries[0], int(self.config.strike_window)
        owner, queue_list = first.job.owner, first.job.queue_list
        names = [keys.facts(owner), keys.private(owner), keys.queue(queue_list), keys.recovered]
        names += [keys.stats, keys.probation(queue_list), keys.on_probation, keys.stopped]
        names.append(keys.stats_rows)
        args: list[Any] = [int(marked), window, expires, queue_list, owner, first.reason]
        args += [STOPS_TO_FRONT, STOPS_NAMED]
        for recovery in recoveries:
            job = recovery.job
            names.append(keys.recoveries(recovery.digest))
            args += [job.claim_id, recovery.recoveries - 1, recovery.strikes, recovery.blame.value]
            args += [recovery.probation, int(recovery.own), recovery.record]
            args.append(self.database.counted_as(recovery.task))
        return Call("recover", names, args)
