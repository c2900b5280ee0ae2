"""Reads the histories of jobs, and carries out decisions to recover or dead-letter a job.

Words: an *owner* is a process that claims jobs, into its private list in Redis. A *reaper* finds
owners that are dead. A job is *recovered* after its run was lost, since the process that ran it
died or gave the run up: it returns to the front of its queue. If the loss may have been the job's
own fault, it counts as a *strike*, and the job may go on *probation*: it waits in a list of its own
until a worker can run it alone. A job with too many strikes is *dead-lettered* (in names of code:
killed). The *history* of a job is a hash in Redis that has these counts; its key has the *digest*
(SHA-1) of the job's bytes. The counters of `status` and metrics are in ``stats.py``.

``carry_out`` has two callers. The reaper calls it for the jobs of a dead owner: in a worker's
maintenance thread, in the task that beat sends, or in `superfetch reap`. ``Settlement``
(``owner/in_flight``) calls it for a live owner, in the worker's main process: for a job whose pool
process died, and for a job that cannot be run. They also take the decisions; this file takes none.
Before a decision ``reaper/recovery.py`` reads the histories (``counters``); the console reads them,
too (``counters``, ``stopped``).

Each script is atomic: a dead-lettered job leaves the private list, enters the dead set, and its
notice (a job that informs its caller) is pushed to its queue at the same moment. If the process
dies between two scripts, the jobs of the second are still in the private list of their owner, and
their histories have not changed. The next pass (run) of any reaper finds them there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..model.config import ANNOUNCE_TASK
from ..model.job import UNREADABLE, Counters
from ..model.strikes import STOPS_NAMED, STOPS_TO_FRONT, Decision, Recovery
from .database import Database, Structure
from .dead_set import DeadSetStore
from .redis.call import Call

#: Makes the notice of a dead-lettered job: the message of a task that reports the job's failure to
#: its caller. The argument is the queue list to which the message will be pushed; the script writes
#: the job's id into it. An empty result: no message could be made.
Notice = Callable[[str], bytes]


class Outcome(NamedTuple):
    """The outcome of one decision."""

    recovery: Recovery
    #: ``ok``; or an error; or why the script did nothing: ``unmarked`` (the owner is not marked
    #: reaped), ``moved`` (the job has left the private list), ``recounted`` (the job's history has
    #: changed since the decision).
    answer: bytes | Exception
    dead_id: bytes = b""  # the job's id in the dead set, if it was dead-lettered
    #: Whether a notice of the dead-lettered job was pushed, whose run will send ``job_killed``. 0:
    #: none was wanted or could be made, the queue's key is no list, or the job is a notice itself.
    has_notice: int = 0


def notice_for(notice: Notice | None, recovery: Recovery) -> bytes | None:
    """Return the notice of a job that is to be dead-lettered; empty: none could be made, or the job
    is a notice itself; None: none is wanted, or the job's message is unreadable."""
    if notice is None or not recovery.parsed:
        return None
    # If a notice that crashes its process got a notice of its own, that one could crash as well,
    # and so on without end.
    return b"" if recovery.task == ANNOUNCE_TASK else notice(recovery.job.queue_list)


def _stopped_row(raw: bytes) -> dict[str, str]:
    """Read a member of ``superfetch:stopped``; return an empty dict if it is malformed."""
    try:
        row = json.loads(raw)
        return {name: str(row[name]) for name in ("digest", "task", "id", "queue_list")}
    except UNREADABLE:
        return {}


class StrikeCounters(Structure):
    """Histories of jobs (``superfetch:history:<digest>``), and the scripts that recover and
    dead-letter by them."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.dead_set = DeadSetStore(database)

    def counters(self, digests: Sequence[str]) -> list[Counters]:
        """Return the history of each job, by its digest; zeros if a job has none."""
        names = [self.keys.history(digest) for digest in digests]
        counts = ("strikes", "recoveries", "history", "solo_runs", "stops", "deaths", "alongside")
        fields = (*counts, "first_claim", "requeues")
        rows = self.scripts.run("counters", names, fields)
        return [Counters.read(**dict(zip(fields, row, strict=True))) for row in rows]

    def stopped(self) -> list[dict[str, Any]]:
        """Return the jobs whose runs were cut short again and again by workers that were stopping,
        the job with the most stops first: digest, task, id, queue_list and stops of each."""
        raws = self._read(self.client.zrange, self.keys.stopped, 0, -1, empty=[])
        rows = [_stopped_row(raw) for raw in raws]
        by_digest = {row["digest"]: row for row in rows if row}
        known = self.counters([*by_digest]) if by_digest else []
        jobs = [
            {**row, "stops": counters.stops}
            for row, counters in zip(by_digest.values(), known, strict=True)
            # A job with fewer stops has ended since, and its history was deleted.
            if counters.stops >= STOPS_NAMED
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
            notice: makes the notice of each dead-lettered job; None: no caller is informed.

        Returns:
            the outcomes, those of the jobs to dead-letter first.
        """
        killed = [recovery for recovery, decision in decided if decision is Decision.KILL]
        recovered = [recovery for recovery, decision in decided if decision is Decision.RECOVER]
        notices = [notice_for(notice, recovery) for recovery in killed]
        calls = [
            self.dead_set.kill_call(recovery, expires, marked=marked, notice=message)
            for recovery, message in zip(killed, notices, strict=True)
        ]
        if recovered:
            # All in one script. The newest job is pushed first, so that the oldest is at the front
            # in the end. If each job moved alone, a waiting consumer would get the newest.
            calls.append(self.recover(recovered, expires, marked=marked))
        replies = self.scripts.run_all(calls, errors=True)
        if recovered:
            answers = replies.pop()
            replies += answers if isinstance(answers, list) else [answers] * len(recovered)
        return [
            Outcome(recovery, *(reply if isinstance(reply, list) else [reply]))
            for recovery, reply in zip([*killed, *recovered], replies, strict=True)
        ]

    def recover(self, recoveries: Sequence[Recovery], expires: int, *, marked: bool) -> Call:
        """Return the call that counts the recovery of each job and returns the job to the front of
        its queue, or puts it on probation. Arguments as for ``carry_out``."""
        keys, first, window = self.keys, recoveries[0], int(self.config.strike_window)
        owner, queue_list = first.job.owner, first.job.queue_list
        names = [
            keys.owner_record(owner),
            keys.private(owner),
            keys.queue(queue_list),
            keys.has_history,
        ]
        names += [keys.stats, keys.probation(queue_list), keys.on_probation, keys.stopped]
        names += [keys.stats_rows, keys.minutes, keys.minute_rows]
        args: list[Any] = [int(marked), window, expires, queue_list, owner, first.reason]
        args += [STOPS_TO_FRONT, STOPS_NAMED]
        for recovery in recoveries:
            job = recovery.job
            names.append(keys.history(recovery.digest))
            # One less: the count before this recovery, which the script compares with the history.
            args += [job.claim_id, recovery.recoveries - 1, recovery.strikes, recovery.blame.value]
            args += [recovery.solo_runs, int(recovery.is_own_loss), recovery.record]
            args.append(self.database.counted_as(recovery.task))
        return Call("recover", names, args)
