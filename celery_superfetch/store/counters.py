"""Strike counters: reads the history of jobs, and carries out decisions to recover or dead-letter.

A job's history is a hash in Redis: how often the job was recovered after it had lost its run, and
how many of these losses were strikes (may have been its own fault). (The counters of `status` and
metrics are in ``history.py``.) The file decides nothing. An
*owner* is a process that claims jobs, into its private list in Redis. A *reaper* finds owners that
are dead.

``carry_out`` has two callers. The reaper calls it for the jobs of a dead owner: in a worker's
maintenance thread, in the task that beat sends, or in `superfetch reap`. A live owner's settlement
calls it, in the worker's main process, for a job whose pool process died and for a job that it
dead-letters. Before a decision ``reaper/recovery.py`` reads the histories (``counters``); the
console reads them, too (``counters``, ``stopped``).

Each script is atomic: a dead-lettered job leaves the private list, enters the dead set and has its
notice on its queue at the same moment. If the process dies between two scripts, the jobs of the
second are still in the private list of their owner, and the next pass of any reaper finds them.
"""

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
from .redis.call import Call

#: Makes the notice of a dead-lettered job: the message that runs the task which tells the job's
#: caller. The argument is the queue list to which the message will be pushed; the script writes the
#: job's id into it. An empty result: no message could be made.
Notice = Callable[[str], bytes]


class Outcome(NamedTuple):
    """The outcome of one decision."""

    recovery: Recovery
    #: ``ok``; or an error; or why the script did nothing: ``unmarked`` (the owner is not marked
    #: reaped), ``moved`` (the job has left the private list), ``recounted`` (the job's history has
    #: changed since the decision).
    answer: bytes | Exception
    dead_id: bytes = b""  # the job's id in the dead set, if it was dead-lettered
    #: The notice of a dead-lettered job; empty: none could be made, or the job is a notice itself;
    #: None: the caller of ``carry_out`` wanted none, or the message is unreadable.
    notice: bytes | None = None


def _made(notice: Notice | None, recovery: Recovery) -> bytes | None:
    """Return the notice of a job that is to be dead-lettered, as in ``Outcome``."""
    if notice is None or not recovery.parsed:
        return None
    # If a notice that crashes its process got a notice of its own, that one could crash as well,
    # and so on without end.
    return b"" if recovery.task == ANNOUNCE_TASK else notice(recovery.job.queue_list)


def _read(raw: bytes) -> dict[str, str]:
    """Read a member of ``superfetch:stopped``; return an empty dict if it is malformed."""
    try:
        row = json.loads(raw)
        return {name: str(row[name]) for name in ("digest", "task", "id", "queue_list")}
    except UNREADABLE:
        return {}


class StrikeCounters(Structure):
    """Histories of jobs (``superfetch:recoveries:<digest>``), and the scripts that recover and
    dead-letter by them."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.dead_set = DeadSet(database)

    def counters(self, digests: Sequence[str]) -> list[Counters]:
        """Return the history of each job, by its digest; zeros if a job has none."""
        names = [self.keys.recoveries(digest) for digest in digests]
        counts = ("strikes", "recoveries", "history", "probation", "stops", "deaths", "alongside")
        fields = (*counts, "first_claim")
        rows = self.scripts.run("counters", names, fields)
        return [Counters.read(**dict(zip(fields, row, strict=True))) for row in rows]

    def stopped(self) -> list[dict[str, Any]]:
        """Return the jobs whose runs were cut short again and again by workers that were stopping,
        the job with the most stops first: digest, task, id, queue_list and stops of each."""
        rows = [_read(raw) for raw in self.client.zrange(self.keys.stopped, 0, -1)]
        by_digest = {row["digest"]: row for row in rows if row}
        known = self.counters([*by_digest]) if by_digest else []
        jobs = [
            {**row, "stops": counters.stops}
            for row, counters in zip(by_digest.values(), known, strict=True)
            if counters.stops >= STOPS_NAMED  # fewer: its history was deleted, since it has ended
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
        """Recover or dead-letter each job as decided, in one round trip. A script refuses a
        decision if the job's history has changed since.

        Arguments:
            decided: jobs of one owner, queue list and reason, the newest claim first.
            expires: ms of the queue's x-expires (0: none).
            marked: whether the owner must be marked reaped; False: a live owner calls.
            notice: makes the notice of each dead-lettered job; None: no caller is told.
        """
        killed = [recovery for recovery, decision in decided if decision is Decision.KILL]
        spared = [recovery for recovery, decision in decided if decision is Decision.RECOVER]
        notices = [_made(notice, recovery) for recovery in killed]
        calls = [
            self.dead_set.kill(recovery, expires, marked=marked, notice=message)
            for recovery, message in zip(killed, notices, strict=True)
        ]
        if spared:
            # All in one script: if each job moved alone, a waiting consumer would get the newest.
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
        """Return the call that counts the recovery of each job and returns the job to the front of
        its queue, or puts it on probation. Arguments as for ``carry_out``."""
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
