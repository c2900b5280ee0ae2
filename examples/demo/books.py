"""The balance: what the ledger says of each job, and whether that keeps the promise."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from .ledger import Run

#: A job that finished so shortly before the kill may die before its worker could ack it.
ACK_SECONDS = 1.0


@dataclass(frozen=True)
class Kill:
    """The SIGKILL of one worker."""

    worker: int
    at: float
    concurrency: int


@dataclass(frozen=True)
class Balance:
    """Names of jobs, by what became of them."""

    enqueued: frozenset[str]
    finished: frozenset[str]
    #: Were running in the killed worker.
    cut: frozenset[str]
    #: Had finished there, but died before the ack: at-least-once runs these again.
    unacked: frozenset[str]
    started_twice: frozenset[str]
    finished_twice: frozenset[str]

    @classmethod
    def of(cls, jobs: Iterable[str], runs: Iterable[Run], kill: Kill) -> Balance:
        """Read the ledger."""
        starts: dict[str, list[Run]] = {job: [] for job in jobs}
        for run in runs:
            if run.job in starts:
                starts[run.job].append(run)
        there = [run for of_job in starts.values() for run in of_job if run.worker == kill.worker]
        return cls(
            enqueued=frozenset(starts),
            finished=frozenset(
                job for job, of_job in starts.items() if any(run.finished for run in of_job)
            ),
            cut=frozenset(run.job for run in there if run.finished is None),
            unacked=frozenset(
                run.job
                for run in there
                if run.finished is not None
                and run.finished > kill.at - ACK_SECONDS
                and len(starts[run.job]) > 1
            ),
            started_twice=frozenset(job for job, of_job in starts.items() if len(of_job) > 1),
            finished_twice=frozenset(
                job
                for job, of_job in starts.items()
                if sum(run.finished is not None for run in of_job) > 1
            ),
        )

    def lost(self, killed: Collection[str] = ()) -> frozenset[str]:
        """Jobs that neither finished nor are whole in the dead set."""
        return self.enqueued - self.finished - frozenset(killed)

    def problems(self, kill: Kill) -> list[str]:
        """What breaks the promise; an empty list when nothing does."""
        found = []
        if lost := self.lost():
            found.append(f"did not finish: {_names(lost)}")
        if twice := self.finished_twice - self.unacked:
            found.append(f"finished more than once: {_names(twice)}")
        if again := self.started_twice - self.cut - self.unacked:
            found.append(f"ran again although their worker lived: {_names(again)}")
        if len(self.cut) > kill.concurrency:
            found.append(f"more than {kill.concurrency} jobs were cut short: {_names(self.cut)}")
        return found


def _names(jobs: Iterable[str]) -> str:
    return ", ".join(sorted(jobs))
