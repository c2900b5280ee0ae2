"""What owners have recorded as running: the evidence when one of them dies."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from ..model.job import Job
from ..model.strikes import Running
from .database import Structure

#: Field of the running jobs that names the claim which has its process for itself.
ALONE = "alone"

#: Field that says how many ran when their owner was taken for dead.
RAN = "ran"


class RunningJobs(Structure):
    """Claims that run, and the digests of their jobs (``superfetch:running:<owner>``)."""

    def read(self, owner: str, *, stopping: bool = False) -> Running:
        """What an owner had recorded as running.

        Arguments:
            stopping: it had been told to stop.
        """
        record: Any = self.client.hgetall(self.keys.running(owner))
        ran = {id.decode(): name.decode() for id, name in record.items()}
        alone, at_death = ran.pop(ALONE, ""), int(ran.pop(RAN, 0))
        return Running(
            tuple(ran.values()),
            {name: id for id, name in ran.items()},
            alone=ran.get(alone, ""),
            stopping=stopping,
            at_death=at_death,
        )

    def remove(self, job: Job) -> None:
        """Remove what says that a job runs."""
        self.client.hdel(self.keys.running(job.owner), job.claim_id)

    def forget(self, owner: str, held: Container[str]) -> None:
        """Remove what says that ``owner`` runs claims that it does not hold.

        Arguments:
            held: the claim ids that it holds. None may be added meanwhile.
        """
        key = self.keys.running(owner)
        record: Any = self.client.hgetall(key)
        stale = [
            id
            for id, value in record.items()
            if id != RAN.encode() and (value if id == ALONE.encode() else id).decode() not in held
        ]
        if stale:
            self.client.hdel(key, *stale)
