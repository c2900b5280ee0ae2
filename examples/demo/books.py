"""The balance: what the ledger says of each job, and whether that keeps the promise."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

#: A job that finished so shortly before the kill may die before its worker could ack it.
ACK_SECONDS = 1.0


@dataclass
class Run:
    """One run of one job; a job that was cut short has more than one."""

    job: str
    #: Pids of the worker's MainProcess and of its pool process.
    worker: int
    pool_process: int
    started: float
    #: How long it means to take.
    seconds: float
    finished: float | None = None


def runs_of(ledger: Iterable[bytes]) -> list[Run]:
    """All runs in the ledger, in the order in which they started."""
    runs: dict[str, Run] = {}
    for line in ledger:
        entry = json.loads(line)
        name, at = entry.pop("run"), entry.pop("at")
        if entry:
            runs[name] = Run(started=at, **entry)
        else:
            runs[name].finished = at
    return list(runs.values())


@dataclass(frozen=True)
class Kill:
    """The SIGKILL of one worker."""

    worker: int
    at: float
    concurrency: int


class Balance:
    """Names of jobs, by what became of them."""

    def __init__(self, jobs: Collection[str], runs: Iterable[Run], kill: Kill) -> None:
        self.kill = kill
        runs = [run for run in runs if run.job in jobs]
        starts = Counter(run.job for run in runs)
        ends = Counter(run.job for run in runs if run.finished)
        there = [run for run in runs if run.worker == kill.worker]
        self.finished = {*ends}
        self.lost = {*jobs} - self.finished
        self.started_twice = {job for job, times in starts.items() if times > 1}
        self.finished_twice = {job for job, times in ends.items() if times > 1}
        #: Were running in the killed worker.
        self.cut = {run.job for run in there if not run.finished}
        late = {run.job for run in there if run.finished and run.finished > kill.at - ACK_SECONDS}
        #: Had finished there, but died before the ack: at-least-once runs these again.
        self.unacked = late & self.started_twice

    def problems(self) -> list[str]:
        """What breaks the promise; an empty list when nothing does."""
        again = self.started_twice - self.cut - self.unacked
        most = self.kill.concurrency
        found = {
            "did not finish": self.lost,
            "finished more than once": self.finished_twice - self.unacked,
            "ran again although their worker lived": again,
            f"more than {most} jobs were cut short": self.cut if len(self.cut) > most else (),
        }
        return [f"{what}: {', '.join(sorted(jobs))}" for what, jobs in found.items() if jobs]
