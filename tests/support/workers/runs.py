"""Which runs there were, and why a job had more than one: the ledger held against the faults."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: Seconds between a job's last line and its ack: killed in between, it runs again. (The worker may
#: just be reconnecting: it waits for a reply as long as it waits for any, and 2 and 4 s between
#: its tries. A pool's results are read only then.)
UNSETTLED = 15.0
#: Seconds after a freeze of its worker within which a run begins that began before the freeze: the
#: last look at its start permit was before it, and the first line of the task behind.
THAWED = 0.05


@dataclass
class Run:
    """One run of one message, by the process that wrote it down."""

    job: str
    message: str
    worker: str
    pid: int
    began: float
    ended: float | None = None
    #: "finished", "rejected" or "retried"; empty when the run was cut short. A run whose retry
    #: could not be sent is "retried" first, and then "rejected".
    end: str = ""


class Standstill(NamedTuple):
    """The server answered nobody: no second of it counts for what waits for an answer."""

    began: float
    ended: float

    def within(self, began: float, ended: float) -> float:
        """Seconds of it between these two times."""
        return max(0.0, min(ended, self.ended) - max(began, self.began))


@dataclass(frozen=True)
class Harm:
    """A fault that may cut running jobs short, or make others take them for lost."""

    kind: str
    workers: frozenset[str]
    began: float
    ended: float
    #: The one process that it hit; 0 for all of these workers.
    pid: int = 0

    def explains(self, run: Run, standstills: Iterable[Standstill]) -> bool:
        """Whether the run was under way, or not settled yet, when this happened."""
        ended = self.began if run.ended is None else run.ended
        silent = sum(standstill.within(ended, self.began) for standstill in standstills)
        return (
            run.worker in self.workers
            and self.pid in (0, run.pid)
            and run.began <= self.ended
            and ended + silent >= self.began - UNSETTLED
        )

    def stopped_start_of(self, run: Run) -> bool:
        """Whether this froze the run's worker, and the run's first line came as it thawed."""
        thaws = self.began <= run.began <= self.ended + THAWED
        return self.kind == "freeze" and run.worker in self.workers and thaws


@dataclass
class Report:
    """What became of all jobs."""

    published: int
    lost: list[str]
    #: A job that ran more than once, and why: (what, number of runs, reasons).
    explained: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.lost and not self.unexplained

    def __str__(self) -> str:
        lines = [f"{self.published} jobs published, {len(self.lost)} lost"]
        lines += [f"  lost: {job}" for job in self.lost]
        lines += [f"{len(self.explained)} run more than once, each for a reason:"]
        lines += [f"  {text}" for text in self.explained]
        lines += [f"{len(self.unexplained)} run more than once without a reason"]
        lines += [f"  UNEXPLAINED {text}" for text in self.unexplained]
        return "\n".join(lines)


def runs_of(lines: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], list[Run]]:
    """(job, message) -> its runs in their order."""
    found: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for line in lines:
        runs = found[line["job"], line["message"]]
        if line["event"] == "started":
            runs.append(Run(line["job"], line["message"], line["worker"], line["pid"], line["at"]))
            continue
        mine = (line["worker"], line["pid"])
        may_follow = ("", "retried") if line["event"] == "rejected" else ("",)
        for run in reversed(runs):
            if (run.worker, run.pid) == mine and run.end in may_follow:
                run.end, run.ended = line["event"], line["at"]
                break
    return found


def report(
    published: Iterable[str],
    lines: Iterable[Mapping[str, Any]],
    harms: Iterable[Harm],
    standstills: Iterable[Standstill] = (),
) -> Report:
    """Hold what ran against what was published and what went wrong.

    A message published twice (a producer that tried again) is two jobs: each may run once.
    """
    harms, standstills = list(harms), list(standstills)
    found = runs_of(lines)
    done = {run.job for runs in found.values() for run in runs if run.end == "finished"}
    names = list(published)
    result = Report(len(names), [job for job in names if job not in done])
    for (job, _), runs in found.items():
        if len(runs) < 2:
            continue
        for run in runs:
            run.began = min([run.began, *(h.began for h in harms if h.stopped_start_of(run))])
        last = max(runs, key=lambda run: (run.end == "finished", run.began))
        reasons = [_why(run, harms, standstills) for run in runs if run is not last]
        if all(reason == "rejected" for reason in reasons):
            continue
        text = f"{job}: {len(runs)} runs ({'; '.join(reason or '?' for reason in reasons)})"
        (result.explained if all(reasons) else result.unexplained).append(text)
        if not all(reasons):
            result.unexplained += [f"    {run}" for run in runs]
            hit = {run.worker for run in runs}
            result.unexplained += [f"    {harm}" for harm in harms if harm.workers & hit]
    return result


def _why(run: Run, harms: list[Harm], standstills: list[Standstill]) -> str:
    """Why this run was not the last; empty when nothing tells."""
    if run.end == "rejected":
        return "rejected"
    causes = (harm for harm in harms if harm.explains(run, standstills))
    return next((f"{harm.kind} of {run.worker}" for harm in causes), "")
