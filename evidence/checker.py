"""Judges the history of a storm. It knows nothing of whoever ran the jobs, and needs Python alone:

    python evidence/checker.py HISTORY.jsonl[.gz] ...

A history has one JSON line for each event, in any order; `at` is in seconds since 1970.

- ``send``: a ``job`` of a ``kind``, with the names of its ``steps`` in the order in which one hands
  on the next; ``parts``: how many of them begin together (those of a chord), and then what its body
  is to be given (``values``). ``due``: not before that. ``order``: the name of a queue that one
  worker serves, one job after the other. ``pill``: how often a job that kills whoever runs it may
  run. ``doubt``: the sender got an error, so that it may have been sent or not.
- ``start`` and ``end``: a ``run`` of a ``step`` of a ``job``, by process ``pid`` of a ``worker``,
  which came by a ``message``: whoever publishes a step twice makes two. ``given``: a body's values.
- ``harm``: its ``kind``, when it began (``at``) and was over (``until``), the ``workers`` that it
  hit, and the one ``pid`` of theirs, if it was one process alone. ``cut``: they lost connections.
- ``outcome``: of a step whose result is no success: its ``state``, and the ``type`` of a failure.
- ``rest``: nothing is under way any more, or ``waits`` somewhere; without it this is not whole.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

Line = dict[str, Any]

#: Seconds after a run's end within which a harm may still be why there is another: its ack may not
#: have come through. (A worker that reconnects waits for a reply, and 2 and 4 s between its tries.)
UNSETTLED = 15.0

#: Seconds after its connections were cut for which a worker may be without (it tries again after 2
#: and 4 s). What runs then cannot be acked, and who is not heard is soon taken for dead.
CUT_OFF = 6.0

#: What is judged -> what it says.
VERDICTS = {
    "lost": "was sent, and never ended",
    "stuck": "something before it ended, and it never began, or its caller never heard",
    "twice": "ran again though nothing had befallen the run before",
    "forked": "was handed on twice",
    "wrong values": "a body was given other values than its parts had returned",
    "early": "began before it was due",
    "out of order": "began before one that was sent earlier to the same queue",
    "innocent killed": "was given up as a killer, and is none",
    "pill": "ran more often than a killer may",
    "failed": "ended with an error that is not its own",
}


@dataclass
class Run:
    """One start of one step."""

    line: Line
    ended: float | None = None

    @property
    def at(self) -> float:
        return float(self.line["at"])


@dataclass
class Job:
    """What was sent, and all its runs by their steps."""

    sent: Line
    runs: dict[str, list[Run]] = field(default_factory=lambda: defaultdict(list))

    @property
    def steps(self) -> list[str]:
        return list(self.sent["steps"])

    def ended(self, step: str) -> bool:
        return any(run.ended is not None for run in self.runs[step])

    def before(self, step: str) -> list[str]:
        """What has to end before a step is handed on; nothing comes before the first ones."""
        at, parts = self.steps.index(step), self.sent.get("parts", 1)
        return [] if at < parts else self.steps[: parts if parts > 1 else at]


@dataclass
class History:
    jobs: dict[str, Job]
    harms: list[Line]
    outcomes: dict[tuple[str, str], Line]
    rest: Line | None

    def owes(self, job: Job, step: str) -> bool:
        """Whether a step that never began should have: not one that may not have been sent, nor
        one after another that was given up, of which its caller was told."""
        keys = [(job.sent["job"], other) for other in job.before(step)]
        given_up = any(self.outcomes.get(key, {}).get("state") == "FAILURE" for key in keys)
        return not given_up if keys else not job.sent.get("doubt")

    def befell(self, run: Run, until: float) -> Iterator[Line]:
        """The harms that hit a run before another one began, and before it was settled."""
        worker, pid, mine = run.line["worker"], run.line["pid"], run.line["run"]
        settled = until if run.ended is None else run.ended + UNSETTLED
        for harm in self.harms:
            hit = worker in harm["workers"] and harm.get("pid") in (None, pid)
            over = harm["until"] + (CUT_OFF if harm.get("cut") else 0)
            meanwhile = run.at <= over and harm["at"] <= min(until, settled)
            if hit and meanwhile and harm.get("run") != mine:
                yield harm


def load(lines: Iterable[Line]) -> History:
    jobs: dict[str, Job] = {}
    harms, outcomes, ends, starts, rest = [], {}, {}, [], None
    for line in lines:
        event = line["event"]
        if event == "send":
            jobs[line["job"]] = Job(line)
        elif event == "start":
            starts.append(line)
        elif event == "end":
            ends[line["run"]] = line["at"]
        elif event == "harm":
            harms.append(line)
        elif event == "outcome":
            outcomes[line["job"], line["step"]] = line
        elif event == "rest":
            rest = line
    for line in sorted(starts, key=lambda start: start["at"]):
        if job := jobs.get(line["job"]):
            job.runs[line["step"]].append(Run(line, ends.get(line["run"])))
            if job.sent.get("pill"):  # a killer is a harm to all who run in its process
                place = {"workers": [line["worker"]], "pid": line["pid"], "run": line["run"]}
                harms.append({"kind": "pill", "at": line["at"], "until": line["at"] + 5, **place})
    return History(jobs, harms, outcomes, rest)


# -- the verdicts


def judge(history: History) -> dict[str, list[str]]:
    """Verdict -> what it found, each with the job's name first."""
    troubles: dict[str, list[str]] = {verdict: [] for verdict in VERDICTS}
    for name, job in history.jobs.items():
        judged = _of_pill if job.sent.get("pill") else _of
        for verdict, text in judged(history, job):
            troubles[verdict].append(f"{name} ({job.sent['kind']}): {text}")
    troubles["out of order"] += _order(history)
    return troubles


def _of(history: History, job: Job) -> Iterator[tuple[str, str]]:
    """All that can be wrong with a job that kills nobody."""
    for step in job.steps:
        runs = job.runs[step]
        yield from _repeated(history, job, step, runs)
        due = job.sent.get("due")
        if due and runs and runs[0].at < due:
            yield "early", f"{step} began {due - runs[0].at:.3f} s before its time"
        outcome = history.outcomes.get((job.sent["job"], step), {"state": "SUCCESS"})
        if outcome["state"] == "FAILURE":
            yield from _failed(history, job, step, outcome)
        elif runs or history.owes(job, step):
            yield from _unfinished(job, step, outcome["state"])
    if values := job.sent.get("values"):
        for run in job.runs[job.steps[-1]]:
            if sorted(run.line["given"]) != sorted(values):
                yield "wrong values", f"{run.line['given']} instead of {values}"


def _repeated(history: History, job: Job, step: str, runs: list[Run]) -> Iterator[tuple[str, str]]:
    first = job.sent.get("parts", 1)
    messages = {run.line["message"] for run in runs}
    if len(messages) > 1 and job.steps.index(step) >= first:
        yield "forked", f"{step} came by {len(messages)} messages"
        return
    for run, later in pairwise(runs):
        if not any(history.befell(run, later.at)):
            text = "ended" if run.ended is not None else "was under way"
            yield "twice", f"{step} ran again {later.at - run.at:.2f} s after a run that {text}"


def _failed(history: History, job: Job, step: str, outcome: Line) -> Iterator[tuple[str, str]]:
    """A failure is excused where it was given up after as many harms as a killer has runs."""
    runs = job.runs[step]
    hit = sum(any(history.befell(run, until)) for run, until in _followed(runs))
    if outcome["type"] != "PoisonPill":
        if not any(history.outcomes.get((job.sent["job"], other)) for other in job.steps[:-1]):
            yield "failed", f"{step} with {outcome['type']}"
    elif hit < 3:
        yield "innocent killed", f"{step} after {len(runs)} runs, {hit} of them hit by a harm"


def _followed(runs: list[Run]) -> Iterator[tuple[Run, float]]:
    """Each run, and when the next one began."""
    return zip(runs, [*(run.at for run in runs[1:]), float("inf")], strict=False)


def _unfinished(job: Job, step: str, state: str) -> Iterator[tuple[str, str]]:
    if not job.ended(step):
        if all(map(job.ended, before := job.before(step))):
            text = f"{step} has {len(job.runs[step])} starts and no end"
            yield "stuck" if before else "lost", text
    elif state != "SUCCESS":
        yield "stuck", f"{step} ended, and its result is still {state}"


def _of_pill(history: History, job: Job) -> Iterator[tuple[str, str]]:
    [step] = job.steps
    runs = job.runs[step]
    # One that something else ended has not shown yet that it kills.
    excused = sum(
        any(harm["kind"] != "pill" for harm in history.befell(run, min(until, run.at + UNSETTLED)))
        for run, until in _followed(runs)
    )
    if len(runs) > job.sent["pill"] + excused:
        yield "pill", f"{len(runs)} runs, {excused} of them cut short by something else"
    outcome = history.outcomes.get((job.sent["job"], step))
    if (outcome is None or outcome["state"] != "FAILURE") and not job.sent.get("doubt"):
        yield "stuck", f"its caller was told {outcome and outcome['state']}"


def _order(history: History) -> Iterator[str]:
    """One worker, one job after the other: what was sent first begins first, but where a harm came
    between its sending and its start."""
    queues: dict[str, list[Job]] = defaultdict(list)
    for job in history.jobs.values():
        if "order" in job.sent and job.runs[job.steps[0]] and not job.sent.get("doubt"):
            queues[job.sent["order"]].append(job)
    for jobs in queues.values():
        before, latest = jobs[0], 0.0
        for job in sorted(jobs, key=lambda job: float(job.sent["at"])):
            began = job.runs[job.steps[0]][0].at
            if began >= latest:
                before, latest = job, began
            elif not any(
                harm["at"] <= latest and harm["until"] + UNSETTLED >= before.sent["at"]
                for harm in history.harms
            ):
                name, gap = before.sent["job"], latest - began
                yield f"{job.sent['job']}: began {gap:.3f} s before {name}, which was sent earlier"


# -- the program


def read(path: Path) -> Iterator[Line]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as text:
        yield from map(json.loads, text)


def report(history: History, most: int = 5) -> Iterator[str]:
    """The judgement in lines; the last one is the verdict."""
    troubles = judge(history)
    yield _said(size(history))
    kinds = Counter(harm["kind"] for harm in history.harms)
    yield "harms: " + ", ".join(f"{kinds[kind]} {kind}" for kind in sorted(kinds))
    for verdict, texts in troubles.items():
        yield f"{verdict:16} {len(texts):6}  {VERDICTS[verdict]}"
        yield from (f"    {text}" for text in texts[:most])
    if history.rest is None:
        yield "NOT WHOLE: the history ends before everything had come to rest"
    elif count := sum(map(len, troubles.values())):
        waits = ", ".join(history.rest.get("waits", ()))
        yield f"UNEXPLAINED: {count}" + (f"; messages still wait in {waits}" if waits else "")
    else:
        yield "GOOD: nothing is unexplained"


def size(history: History) -> Counter[str]:
    """How much was tried."""
    jobs = history.jobs.values()
    steps = sum(len(job.steps) for job in jobs)
    runs = sum(len(runs) for job in jobs for runs in job.runs.values())
    return Counter(sent=len(jobs), steps=steps, runs=runs, harms=len(history.harms))


def _said(size: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in size.items())


def main(*paths: str) -> int:
    total, good = Counter[str](), 0
    for path in paths:
        history = load(read(Path(path)))
        *lines, verdict = report(history)
        print(*[path] * (len(paths) > 1), *lines, verdict, sep="\n")
        total.update(size(history))
        good += verdict.startswith("GOOD")
    if len(paths) > 1:
        print(f"{len(paths)} histories, {good} of them good: {_said(total)}")
    return 0 if good == len(paths) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if sys.argv[1:] else __doc__)
