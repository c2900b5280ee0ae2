"""Jobs that wait in the worker's memory, kept out of the private list's way.

A worker with a hundred thousand ETA jobs would walk through them at every ack. They lie in a hash
beside the private list; there the scripts that settle them, or give them back, find them by their
claim ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from ...model.job import Job
from ...store.private_lists import PrivateLists
from ...store.wire.scripts import Call

#: Jobs that one script moves at most: it keeps everybody else waiting.
BATCH = 100


class Held:
    """What one process holds aside. Not thread-safe: ``Settling`` sees to that."""

    def __init__(self, lists: PrivateLists) -> None:
        self.lists = lists
        #: To be moved with the next round trip.
        self._waiting: dict[Job, None] = {}
        #: Moved; where a reply was lost, perhaps not.
        self._aside: set[Job] = set()

    def __contains__(self, job: object) -> bool:
        return job in self._aside

    def __len__(self) -> int:
        """How many wait to be moved."""
        return len(self._waiting)

    def is_due(self, job: Job) -> bool:
        """Whether it is to be moved with the next round trip."""
        return job in self._waiting

    def add(self, job: Job) -> None:
        """Move this one out of the way with the next round trip."""
        if job not in self._aside:
            self._waiting[job] = None

    def forget(self, job: Job) -> None:
        """It is in the private list, or gone."""
        self._waiting.pop(job, None)
        self._aside.discard(job)

    def hold(self) -> list[Call]:
        """The calls that move what waits to be moved."""
        if not self._waiting:
            return []
        calls = [self.lists.hold(jobs) for jobs in _batches(self._waiting)]
        self._aside.update(self._waiting)
        self._waiting.clear()
        return calls

    def unhold(self, job: Job) -> list[Call]:
        """The call that brings back a job, if it is aside; ``forget`` it then."""
        if job not in self._aside:
            return []
        return [self.lists.unhold(job.owner, job.queue_list, [job.claim_id])]

    def look(self, owner: str, queue_list: str) -> list[Job]:
        """Compare with the server; those that are aside in name only, being in the private list.

        What the server holds and nobody here knows comes back to the private list: a replica that
        was promoted had not seen it settled.

        Raises:
            redis.exceptions.RedisError: the server cannot be asked.
        """
        aside = {job.claim_id: job for job in self._aside if job[:2] == (owner, queue_list)}
        if self.lists.held(owner, queue_list) == len(aside):
            return []
        found: set[str] = set()
        for page in self.lists.held_pages(owner, queue_list):
            ids = {job.claim_id for job in page}
            found |= ids & aside.keys()
            if strays := [job.claim_id for job in page if job.claim_id not in aside]:
                self.lists.scripts.ask(self.lists.unhold(owner, queue_list, strays))
        return [job for id, job in aside.items() if id not in found]


def _batches(jobs: Iterable[Job]) -> Iterator[list[Job]]:
    """Jobs of one private list at a time, not too many at once."""
    groups: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        groups.setdefault((job.owner, job.queue_list), []).append(job)
    for group in groups.values():
        rest = iter(group)
        while batch := list(islice(rest, BATCH)):
            yield batch
