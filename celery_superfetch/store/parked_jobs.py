"""Parked jobs: they wait in Redis for their time, in no worker's memory and in no private list. A
job is parked if its ETA is far, or if it cannot run now: no worker that claimed it knows its task,
or it is a failure notification (the job that informs the caller of a dead job) that is to be tried
again later.

The owner (the process that has claimed such a job into its private list) parks it: ``park`` or
``postpone`` returns the call, unsent, and ``PendingLeases`` (``owner/in_flight``) sends it. Each
worker's release thread calls ``release`` when a job is due, once a second at most; beat's process
calls it each time it is about to send the reap task. If a worker gets the revoke of a parked job,
its maintenance thread makes the job due by the method ``make_due``. `superfetch rollback` calls
``release_all``, and the console reads.

Each move is one script. If the process dies while it parks a job, the job is in its private list or
parked; if it dies while it releases a job, the job is parked or on its queue. The jobs that are
still due are released by any other worker, or by beat.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from math import inf
from typing import Any, NamedTuple

from ..model.job import Job, claim_number, digest, parse
from .database import Structure, none_if_wrong_type
from .redis.call import Call

#: Jobs, and bytes, that one script moves at most, whatever the number of lists: while it runs, the
#: server answers no other client.
PARKED_PER_SCRIPT, PARKED_MAX_BYTES = 100, 1024 * 1024

#: Queue lists that one script examines: each costs the server as much as a few jobs, even if none
#: of its jobs is due.
RELEASE_LISTS = 100

#: Scripts that one ``release`` runs at most. If more jobs are due, the next call continues.
RELEASE_SCRIPTS_MAX = 200

#: ms before its time at which a job goes to its queue. Workers release once a second: without this
#: it would be up to a second late. The worker that claims it early keeps it until its time.
EARLY_MS = 1000

PARKED_SCAN_COUNT = 1000  # parked jobs that one ZSCAN of ``make_due`` examines for task ids


class Released(NamedTuple):
    """Result of one move of due jobs."""

    jobs: int  # how many went to their queues
    now: int  # server ms
    next: float | None  # when the next one is due (server ms); None: none is parked


class ParkedJobs(Structure):
    """Parked jobs by their time (``superfetch:parked:<queue list>``), and the time of the next job
    of each list (``superfetch:parked``). A member is a line with the job's task id (JSON) and the
    name of the claim that parked it, then the payload. The name keeps jobs of equal bytes apart."""

    def park(self, jobs: Mapping[Job, int]) -> Call:
        """Return the call that parks claimed jobs, which are of one owner and one queue list. Its
        reply lists the jobs that were not in the private list, as positions from 1.

        Arguments:
            jobs: job -> until when it is parked (server ms).
        """
        return self._call(jobs, is_postponed=False)

    def postpone(self, jobs: Mapping[Job, int]) -> Call:
        """Return the call that parks claimed jobs which cannot run now. It counts a requeue in the
        history of each. Otherwise it is as ``park``.

        Arguments:
            jobs: job -> for how long it is parked (ms).
        """
        return self._call(jobs, is_postponed=True)

    def _call(self, jobs: Mapping[Job, int], *, is_postponed: bool) -> Call:
        """Return the call of ``park``, or of ``postpone``, whose ``jobs`` have other values."""
        keys, (owner, queue_list, *_) = self.keys, next(iter(jobs))
        names = [keys.private(owner), keys.parked_of(queue_list), keys.parked, keys.has_history]
        names += [keys.stats, keys.stats_rows]
        args: list[Any] = [queue_list, int(is_postponed), int(self.config.strike_window)]
        nonce = owner.rpartition("|")[2]  # an owner's name is host|pid|nonce
        for job, due in jobs.items():
            name = f"{nonce}-{claim_number(job.claim_id)}"
            task, id = parse(job.payload)[1:3]
            task_name = self.database.counted_as(task) if is_postponed else ""
            args += [job.claim_id, due, f"{json.dumps(id)} {name}\n", task_name]
            if is_postponed:
                names.append(keys.history(digest(job.payload)))
        return Call("park", names, args)

    def first(self, queue_list: str, count: int) -> list[bytes]:
        """Return the messages of the parked jobs of a queue list that are due next."""
        key = self.keys.parked_of(queue_list)
        members = self._read(self.client.zrange, key, 0, count - 1, empty=[])
        return [member.partition(b"\n")[2] for member in members]

    def release(
        self, expires: Mapping[str, int], ahead: float = 0, *, to_probation: bool = True
    ) -> Released:
        """Move jobs that are due to the front of their queues. A suspect (a job that may have
        crashed its worker) goes to the probation list of its queue instead, until it can run alone.

        The first script also moves jobs that are due within ``EARLY_MS``. The next scripts do
        not, so that at most ``PARKED_PER_SCRIPT`` jobs are released early: until their time they
        take memory in a worker.

        Arguments:
            expires: queue list -> ms of its queue's x-expires, if it is known.
            ahead: a job counts as due so many ms before its time; infinite: all jobs are due.
            to_probation: False: suspects go to their queues, too.
        """
        keys = self.keys
        probation = keys.probation("") if to_probation else ""
        names = [keys.parked, keys.has_history, keys.on_probation]
        prefixes = [keys.parked_of(""), keys.queue(""), probation, keys.history("")]
        pairs = [(name, ms) for name, ms in expires.items() if ms]
        args: list[Any] = [
            max(EARLY_MS, ahead),
            PARKED_PER_SCRIPT,
            PARKED_MAX_BYTES,
            RELEASE_LISTS,
            *prefixes,
        ]
        args += chain.from_iterable(pairs)
        total = 0
        for _ in range(RELEASE_SCRIPTS_MAX):
            count, unfinished, now, due, examined = self.scripts.run("release", names, args)
            total += count
            # Another script is run if this one says that more jobs are due, and has moved some or
            # examined as many lists as it may. Otherwise the jobs that are due cannot move now: the
            # key of their queue is no list, say.
            if not (unfinished and (count or examined == RELEASE_LISTS)):
                break
            args[0] = ahead
        return Released(total, int(now), None if due is None else float(due))

    def release_all(self, on_moved: Callable[[int], object] = lambda _: None) -> dict[str, int]:
        """Move all parked jobs to their queues, whatever their time, also the suspects: stock
        kombu, which is to run them, knows no probation. Return queue list -> number. ``on_moved``
        gets the number of each batch."""
        names = self.lists()
        sizes = self.readable_sizes(names)
        while moved := self.release({}, inf, to_probation=False).jobs:
            on_moved(moved)
        left = self.readable_sizes(names)
        return {name: size - left.get(name, 0) for name, size in sizes.items()}

    def readable_sizes(self, lists: Collection[str]) -> dict[str, int]:
        """Return the sizes as ``sizes`` does, without the keys of another type, which hold no jobs.
        If these raised, the jobs of no other list would be released."""
        commands = (("ZCARD", self.keys.parked_of(name)) for name in lists)
        sizes = map(none_if_wrong_type, self._at_once(commands, errors=True))
        return {name: size for name, size in zip(lists, sizes, strict=True) if size is not None}

    def lists(self) -> list[str]:
        """Return the queue lists with parked jobs."""
        names = self._read(self.client.zrange, self.keys.parked, 0, -1, empty=[])
        return [name.decode(errors="replace") for name in names]

    def sizes(self, lists: Collection[str]) -> dict[str, int]:
        """Return queue list -> number of its parked jobs."""
        counts = self._at_once((("ZCARD", self.keys.parked_of(name)) for name in lists), empty=0)
        return dict(zip(lists, counts, strict=True))

    def next_due(self, lists: Sequence[str]) -> dict[str, float]:
        """Return queue list -> when the next of its parked jobs is due (server ms), if it has
        any."""
        commands = [("ZSCORE", self.keys.parked, name) for name in lists]
        times = self._at_once(commands, empty=None)
        return {name: at for name, at in zip(lists, times, strict=True) if at is not None}

    def make_due(self, task_ids: Collection[str]) -> int:
        """Make the parked jobs with these task ids due now; return how many there were. A worker
        calls this when it has got a revoke: the next ``release`` moves the jobs to their queues,
        and a worker that claims one discards it. All parked jobs are read once. If the process dies
        midway, the jobs that it has not reached stay parked until their time."""
        count, wanted = 0, {json.dumps(id).encode() for id in task_ids}
        # With one task id the server filters by a pattern. With many it would need a whole scan for
        # each, so that all members are read and compared here.
        start = re.sub(rb"([\\*?\[\]^])", rb"\\\1", next(iter(wanted))) if len(wanted) == 1 else b""
        for name in self.lists():
            key = self.keys.parked_of(name)
            for member, _ in self.client.zscan_iter(key, start + b"*", PARKED_SCAN_COUNT):
                if member.partition(b"\n")[0].rpartition(b" ")[0] not in wanted:
                    continue
                with self.client.pipeline(transaction=True) as pipe:
                    pipe.zadd(key, {member: 0}, xx=True, ch=True)
                    pipe.zadd(self.keys.parked, {name: 0})
                    count += pipe.execute()[0]
        return count
