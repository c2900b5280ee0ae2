"""Parked jobs: they wait on the server for their ETA, in no private list and in no worker's memory.
The owner that claimed a job parks it; each worker's maintenance and beat's process release what is
due once a second. Each move is one script: if the process dies between two of them, the next look
of any worker goes on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from math import inf
from typing import Any, NamedTuple

from ..model.job import Job, claim_number, parse
from .database import Structure
from .wire.scripts import Call

#: Jobs, and bytes, that one script moves at most, whatever the number of lists: while it runs, the
#: server answers no other client.
BATCH, ROOM = 100, 1024 * 1024

#: Queue lists of one script: each costs the server as much as a few jobs, also if it has none.
RELEASE_LISTS = 100

#: Scripts that move what is due, of one look: with more due than that, the next look goes on.
LOOKS = 200

#: ms before its time at which a job goes to its queue. Those who move it look once a second, and
#: the worker that claims it waits for what is left.
EARLY = 1000

STEP = 1000  # parked jobs that one command looks through, for task ids


class Released(NamedTuple):
    """Result of one move of due jobs."""

    jobs: int  # how many went to their queues
    now: int  # server ms
    next: float | None  # when the next one is due (server ms); None: none is parked


class Parked(Structure):
    """Jobs by their time (``superfetch:parked:<queue list>``), and when the next of each list is
    due (``superfetch:parked``). A member is the job's task id (JSON) and the name of the claim that
    parked it, a line's end, and the payload as it came."""

    def park(self, jobs: Mapping[Job, int]) -> Call:
        """Return the call that parks claimed jobs of one owner and queue list, each until its time
        (server ms)."""
        keys, (owner, queue_list, *_) = self.keys, next(iter(jobs))
        names = [keys.private(owner), keys.parked_of(queue_list), keys.parked]
        args: list[Any] = [queue_list]
        nonce = owner.rpartition("|")[2]
        for job, due in jobs.items():
            name = f"{nonce}-{claim_number(job.claim_id)}"
            args += [job.claim_id, due, f"{json.dumps(parse(job.payload).task_id)} {name}\n"]
        return Call("park", names, args)

    def release(self, expires: Mapping[str, int], ahead: float = 0) -> Released:
        """Move jobs that are due within ``ahead`` ms to the front of their queues. The first script
        also takes those that are due within ``EARLY``, so at most ``BATCH`` of them: these wait in
        a worker's memory. ``expires``: queue list -> ms of its x-expires, where it is known."""
        keys = self.keys
        names = [keys.parked, keys.recovered, keys.on_probation]
        prefixes = [keys.parked_of(""), keys.queue(""), keys.probation(""), keys.recoveries("")]
        pairs = [(name, ms) for name, ms in expires.items() if ms]
        args: list[Any] = [max(EARLY, ahead), BATCH, ROOM, RELEASE_LISTS, *prefixes]
        args += chain.from_iterable(pairs)
        total = 0
        for _ in range(LOOKS):
            count, unfinished, now, due, looked = self.scripts.run("release", names, args)
            total += count
            # Where all the lists that it looked at were purged, others come behind them.
            if not (unfinished and (count or looked == RELEASE_LISTS)):
                break
            args[0] = ahead
        return Released(total, int(now), None if due is None else float(due))

    def release_all(self, on_moved: Callable[[int], object] = lambda _: None) -> dict[str, int]:
        """Move all parked jobs to their queues, whatever their time; return queue list -> number.
        ``on_moved`` gets the number of each batch."""
        sizes = self.sizes(self.lists())
        while moved := self.release({}, inf).jobs:
            on_moved(moved)
        left = self.sizes(sizes)
        return {name: size - left[name] for name, size in sizes.items()}

    def lists(self) -> list[str]:
        """Return the queue lists with parked jobs."""
        return [
            name.decode(errors="replace") for name in self.client.zrange(self.keys.parked, 0, -1)
        ]

    def sizes(self, lists: Collection[str]) -> dict[str, int]:
        """Return queue list -> number of its parked jobs."""
        counts = self._at_once(("ZCARD", self.keys.parked_of(name)) for name in lists)
        return dict(zip(lists, counts, strict=True))

    def next_due(self, lists: Sequence[str]) -> dict[str, float]:
        """Return queue list -> when the next of its parked jobs is due (server ms), if it has
        any."""
        times = self._at_once(("ZSCORE", self.keys.parked, name) for name in lists)
        return {name: at for name, at in zip(lists, times, strict=True) if at is not None}

    def call(self, task_ids: Collection[str]) -> int:
        """Make jobs due now, so that the next ``release`` moves them; return how many there were. A
        revoke does this, so that a worker discards them at once. It reads all parked jobs once."""
        count, wanted = 0, {json.dumps(id).encode() for id in task_ids}
        # The server looks for one name; of many it would look through all for each.
        start = re.sub(rb"([\\*?\[\]^])", rb"\\\1", next(iter(wanted))) if len(wanted) == 1 else b""
        for name in self.lists():
            key = self.keys.parked_of(name)
            for member, _ in self.client.zscan_iter(key, start + b"*", STEP):
                if member.partition(b"\n")[0].rpartition(b" ")[0] not in wanted:
                    continue
                with self.client.pipeline(transaction=True) as pipe:
                    pipe.zadd(key, {member: 0}, xx=True, ch=True)
                    pipe.zadd(self.keys.parked, {name: 0})
                    count += pipe.execute()[0]
        return count
