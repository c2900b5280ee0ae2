"""Judge the history of a storm. This program knows nothing of the system that ran the jobs, and
needs only Python:

    python evidence/checker.py HISTORY.jsonl[.gz] ...

A storm runs many jobs while many things fail (*harms*), and each task and each harm writes lines to
a history. The program reads the lines, and reports each event that the rules do not allow and no
harm explains. If it dies, nothing is lost: run it again.

A history has one line of JSON for each event, in any order; ``at`` is its time, in seconds since
1970:

- ``send``: a ``job`` of a ``kind`` was sent. ``steps``: the names of its steps; each publishes the
  next. ``parts``: so many of them begin together (the parts of a chord); ``values``: what its body
  has to get. ``due``: it must not begin earlier. ``order``: the name of a queue that one worker
  serves, one job after the other. ``pill``: the job kills its process; so often it may run. With
  ``stops`` it stops its whole worker instead, and may also end well. ``ends``: the states that its
  result may have (without it: SUCCESS alone). ``queue``, ``priority``: where it was sent.
  ``until``: when the sender had an answer. ``doubt``: the answer was an error, so the job may have
  been sent or not. ``shared``: other jobs have its task id, so it has no result of its own.
- ``start`` and ``end``: of a ``run`` of a ``step`` of a ``job``, in the process ``pid`` of a
  ``worker``. ``message``: the id of the message that brought it; a step that was published twice
  has two. ``given``: the values that a body got. ``by`` and ``part``: a run published this step by
  hand, in addition to the steps of its job.
- ``hand``: a ``run`` published this ``part`` by hand, once. ``doubt``: it got an error. ``once``:
  the message of another run may replace it (a retry is a step of the job).
- ``worker``: a worker was started at a ``place`` that serves a ``queue``.
- ``unload``: a process ``pid`` of a pool whose processes take long to load ended as intended.
- ``work``: such a process began a ``task`` that the storm had not sent as a job.
- ``strike``: a ``step`` of a ``job`` that was given up has a strike: its ``worker`` was declared
  lost at ``struck``.
- ``harm``: its ``kind``, its beginning (``at``) and end (``until``), and the ``workers`` that it
  hit; ``pid``, if it hit one of their processes only. ``cut``: the workers lost their connections.
  A harm that hit no worker (a pool was told to shrink, the server to close idle connections)
  excuses nothing. ``back``: the server came back as it was at that time. Then a job that was not
  settled by then may run again as soon as the server is killed, and publish its steps a second
  time. What was sent after that time, and before the server was back, may be lost; so may the body
  of a chord whose last part ended in this time, because its parts are counted on another server. No
  other step may be lost: the job that publishes it is in the snapshot, and runs again.
- ``outcome``: of a step whose result is no success: its ``state``, and the ``type`` of a failure.
- ``rest``: the end of the storm: nothing runs any more. ``waits``: the keys in which messages are
  left. A history without this line is not whole.
"""

from __future__ import annotations

import gzip
import json
import sys
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, combinations, pairwise
from pathlib import Path
from typing import Any

Line = dict[str, Any]

#: Seconds after the end of a run for which a harm still excuses another run, since the ack may not
#: have arrived. (A worker that reconnects waits for a reply, and 2 and 4 s between its tries.)
UNSETTLED = 15.0

#: Seconds for which a worker may have no connection after these were cut (it tries again after 2
#: and 4 s). Meanwhile it can ack nothing, and other workers may declare it dead.
CUT_OFF = 6.0

#: Seconds from the start of a job that stops its worker to the end of all processes of that worker.
STOPPED = 30.0

#: How a job stops its worker, if a kill follows the signal a second later. The worker may not have
#: reported by then that it stops. Then that run is a strike, and counted apart from the stops: at
#: the third strike the job is given up as well.
KILLED_SOON, STRIKES_BEFORE_THE_LAST = "TERM, then KILL", 2

#: Seconds by which the time of a strike may be too early: it may be rounded to whole seconds.
ROUNDED = 1.0

#: Seconds by which jobs that were sent later may overtake a job (its worker may freeze or die,
#: several times), and for which a place may begin no job although jobs are sent to it. Both are a
#: multiple of the time that harms explain. A slot or a worker that is lost for ever exceeds them.
OVERTAKEN, SILENT = 45.0, 90.0
#: Seconds within which two processes of a pool may begin in either order; and within which a worker
#: that continues after a freeze may begin a run whose start permit it had checked before.
ALONGSIDE, THAWED = 0.5, 0.05
#: Number of jobs sent to a silent place from which on it counts as one that had work.
BUSY = 5

#: Errors with which a worker ends a job, and which the job itself does not raise.
GIVEN_UP, RUNNER_ERRORS = "PoisonPill", ("PoisonPill", "WorkerLostError")

#: Verdict -> its meaning, as it is printed.
VERDICTS = {
    "lost": "was sent, and never ended",
    "stuck": "the step before it ended, and it never began, or its caller never got the result",
    "twice": "ran again, although no harm had hit its run before",
    "forked": "was published twice",
    "wrong values": "a body got other values than its parts had returned",
    "early": "began before it was due",
    "out of order": "began before a job that was sent earlier to the same queue",
    "innocent killed": "was given up as a killer, and is none",
    "pill": "ran more often than a killer may",
    "failed": "ended with an error that is not its own",
    "starved": "began long after jobs that were sent long after it",
    "silent": "a place began no job for long, although jobs were sent to it",
    "wasted": "a process of a pool was loaded, and ended without a job",
    "waiting": "messages wait or are in flight, although nothing runs any more",
}


@dataclass
class Run:
    """One start of one step."""

    line: Line
    at: float
    ended: float | None = None


@dataclass
class Job:
    """A job that was sent, and its runs by step."""

    sent: Line
    runs: dict[str, list[Run]] = field(default_factory=lambda: defaultdict(list))
    #: Runs that other runs published by hand, by (publisher's run, part).
    by_hand: dict[tuple[str, str], list[Run]] = field(default_factory=lambda: defaultdict(list))
    published: list[Line] = field(default_factory=list)

    @property
    def steps(self) -> list[str]:
        return list(self.sent["steps"])

    def ended(self, step: str) -> bool:
        return bool(self.ends(step))

    def ends(self, step: str) -> list[float]:
        return [run.ended for run in self.runs[step] if run.ended is not None]

    def before(self, step: str) -> list[str]:
        """Return the steps that have to end before a step is published; none for the first ones."""
        at, parts = self.steps.index(step), self.sent.get("parts", 1)
        return [] if at < parts else self.steps[: parts if parts > 1 else at]


@dataclass
class History:
    """The lines of a history, by event."""

    jobs: dict[str, Job]
    harms: list[Line]
    outcomes: dict[tuple[str, str], Line]
    rest: Line | None
    workers: list[Line]
    unloads: list[Line]
    works: list[Line]
    strikes: list[Line]

    def owes(self, job: Job, step: str) -> bool:
        """Return whether a step has to begin: False if it may not have been sent, or if a step
        before it was given up and failed."""
        keys = [(job.sent["job"], other) for other in job.before(step)]
        given_up = any(self.outcomes.get(key, {}).get("state") == "FAILURE" for key in keys)
        return not given_up if keys else not job.sent.get("doubt")

    @cached_property
    def restores(self) -> list[Line]:
        """The harms after which the server came back from a snapshot."""
        return [harm for harm in self.harms if "back" in harm]

    def forgot(self, run: Run, later: float) -> bool:
        """Return whether the server had forgotten that a run was settled when a later one began."""
        return any(_undid(harm, run) and later >= harm["at"] for harm in self.restores)

    def copies(self, job: Job, step: str) -> int:
        """Return how often the server forgot that a step was published, so that it was published
        again by another run of the step before it."""
        earlier = [job.runs[name] for name in job.before(step)] if step in job.steps else []
        return sum(
            any(
                _undid(harm, run) and later.at >= harm["at"]
                for runs in earlier
                for run, later in combinations(runs, 2)
            )
            for harm in self.restores
        )

    def gone(self, job: Job, step: str) -> bool:
        """Return whether the server may have lost a step when it came back from a snapshot."""
        return any(_sent_since(h, job, step) or _body_since(h, job, step) for h in self.restores)

    def befell(self, run: Run, until: float) -> Iterator[Line]:
        """Yield the harms that hit a run before ``until`` (the start of the next run), and before
        it was settled."""
        worker, pid, mine = run.line["worker"], run.line["pid"], run.line["run"]
        settled = until if run.ended is None else run.ended + UNSETTLED
        for harm in self.harms:
            hit = worker in harm["workers"] and harm.get("pid") in (None, pid)
            over = harm["until"] + (CUT_OFF if harm.get("cut") else 0)
            meanwhile = run.at <= over and harm["at"] <= min(until, settled)
            if hit and meanwhile and harm.get("run") != mine:
                yield harm


def _undid(harm: Line, run: Run) -> bool:
    """Return whether a server came back from a snapshot in which a run was not settled."""
    settled = float("inf") if run.ended is None else run.ended + UNSETTLED
    return bool(run.at <= harm["until"] + CUT_OFF and settled >= harm["back"])


def _sent_since(harm: Line, job: Job, step: str) -> bool:
    """Return whether a job was sent after the snapshot, and no later run publishes the step."""
    over, sent = harm["until"] + CUT_OFF, job.sent
    runs = [run for name in job.before(step) for run in job.runs[name]]
    since = harm["back"] <= sent.get("until", sent["at"]) and sent["at"] <= harm["until"]
    return since and all(run.at <= over and (run.ended or 0) <= over for run in runs)


def _body_since(harm: Line, job: Job, step: str) -> bool:
    """Return whether a step is the body of a chord whose last part first ended after the
    snapshot."""
    parts = job.before(step)
    if not job.sent.get("values") or not parts or not all(map(job.ended, parts)):
        return False
    last = max(min(job.ends(part)) for part in parts)
    return bool(harm["back"] - UNSETTLED <= last <= harm["until"] + CUT_OFF)


def load(lines: Iterable[Line]) -> History:
    """Sort the lines of a history by event and by job. A job that kills its process or its worker
    is a harm to the other jobs there, and is added to the harms."""
    of: dict[str, list[Line]] = defaultdict(list)  # event -> its lines
    for line in lines:
        of[line["event"]].append(line)
    jobs = {line["job"]: Job(line) for line in of["send"]}
    ends = {line["run"]: line["at"] for line in of["end"]}
    outcomes = {(line["job"], line["step"]): line for line in of["outcome"]}
    harms = [*of["harm"]]
    froze = [harm for harm in harms if "freeze" in harm["kind"]]
    runs = [Run(s, _began(s, jobs, froze), ends.get(s["run"])) for s in of["start"]]
    for run in sorted(runs, key=lambda run: run.at):
        if job := jobs.get((line := run.line)["job"]):
            if "by" in line:
                job.by_hand[line["by"], line["part"]].append(run)
            else:
                job.runs[line["step"]].append(run)
                harms += _own_harm(job, line)
    for line in of["hand"]:
        if line["job"] in jobs:
            jobs[line["job"]].published.append(line)
    others = map(of.__getitem__, ("worker", "unload", "work", "strike"))
    return History(jobs, harms, outcomes, of["rest"][-1] if of["rest"] else None, *others)


def _began(start: Line, jobs: dict[str, Job], freezes: list[Line]) -> float:
    """Return when a run began. If its worker was frozen until just before its first line, it may
    have begun before the freeze (``THAWED``)."""
    at, sent = start["at"], jobs[start["job"]].sent if start["job"] in jobs else start
    soon = [
        h for h in freezes if 0 <= at - h["until"] <= THAWED and start["worker"] in h["workers"]
    ]
    return float(min([at, *(h["at"] for h in soon if sent.get("due", sent["at"]) <= h["at"])]))


def _own_harm(job: Job, start: Line) -> Iterator[Line]:
    """Yield the harm that a run of a killer is: to all runs in its process, or in its worker if it
    stops that."""
    if job.sent.get("stops"):
        kind, lasts, pid = "stop", STOPPED, None
    elif job.sent.get("pill"):
        kind, lasts, pid = "pill", 5.0, start["pid"]
    else:
        return
    place = {"workers": [start["worker"]], "pid": pid, "run": start["run"], "job": start["job"]}
    yield {"kind": kind, "at": start["at"], "until": start["at"] + lasts, **place}


# -- the verdicts


def judge(history: History) -> dict[str, list[str]]:
    """Return the unexplained events of each verdict, as texts that begin with the job's name."""
    troubles: dict[str, list[str]] = {verdict: [] for verdict in VERDICTS}
    for name, job in history.jobs.items():
        judged = _of_pill if job.sent.get("pill") else _of
        for verdict, text in judged(history, job):
            troubles[verdict].append(f"{name} ({job.sent['kind']}): {text}")
    troubles["out of order"] += _order(history)
    troubles["starved"] += _starved(history)
    troubles["silent"] += _silent(history)
    troubles["wasted"] += _wasted(history)
    troubles["waiting"] += (history.rest or {}).get("waits", ())
    return troubles


def _of(history: History, job: Job) -> Iterator[tuple[str, str]]:
    """Yield the verdicts on a job that is no killer, each with a text."""
    for step in job.steps:
        runs = job.runs[step]
        yield from _repeated(history, job, step, runs)
        due = job.sent.get("due")
        if due and runs and runs[0].at < due:
            yield "early", f"{step} began {due - runs[0].at:.3f} s before its time"
        ends = job.sent.get("ends", ["SUCCESS"])
        # If a job may not have been sent, its result was not read.
        unasked = {"state": ends[0] if job.sent.get("doubt") else "SUCCESS"}
        outcome = history.outcomes.get((job.sent["job"], step), unasked)
        if outcome["state"] == "FAILURE" and outcome is not unasked:
            yield from _failed(history, job, step, outcome)
        elif (runs or history.owes(job, step)) and not history.gone(job, step):
            yield from _unfinished(job, step, outcome["state"], ends)
    yield from _published(history, job)
    if values := job.sent.get("values"):
        for run in job.runs[job.steps[-1]]:
            if sorted(run.line["given"]) != sorted(values):
                yield "wrong values", f"{run.line['given']} instead of {values}"


def _repeated(history: History, job: Job, step: str, runs: list[Run]) -> Iterator[tuple[str, str]]:
    """Yield ``forked`` for a step that was published twice, and ``twice`` for each run after a run
    that no harm had hit."""
    by_message: dict[str, list[Run]] = defaultdict(list)
    handed_on = step not in job.steps[: job.sent.get("parts", 1)]
    for run in runs:
        by_message[run.line["message"] if handed_on else ""].append(run)
    if len(by_message) > 1 + history.copies(job, step):
        yield "forked", f"{step} came by {len(by_message)} messages"
        return
    for run, later in chain.from_iterable(map(pairwise, by_message.values())):
        if not any(history.befell(run, later.at)) and not history.forgot(run, later.at):
            text = "ended" if run.ended is not None else "was under way"
            yield "twice", f"{step} ran again {later.at - run.at:.2f} s after a run that {text}"


def _published(history: History, job: Job) -> Iterator[tuple[str, str]]:
    """Yield a verdict for each message that a run published by hand and that did not run, or ran
    twice. (A message that was published at the moment of a crash, and is not in the history, may
    run.)"""
    for (by, part), runs in job.by_hand.items():
        yield from _repeated(history, job, f"part {part} of run {by}", runs)
    for line in job.published:
        if any(h["back"] <= line["at"] <= h["until"] + CUT_OFF for h in history.restores):
            continue
        by = {origin[0] for origin in job.by_hand} if line.get("once") else {line["run"]}
        runs = [run for name in by for run in job.by_hand.get((name, line["part"]), [])]
        ended = any(run.ended is not None for run in runs)
        if not ended and not line.get("doubt") and _hit(history, runs) < 3:
            text = f"has {len(runs)} starts and no end"
            yield "lost", f"part {line['part']}, published by hand by run {line['run']}, {text}"


def _failed(history: History, job: Job, step: str, outcome: Line) -> Iterator[tuple[str, str]]:
    """Yield a verdict on a failed step, unless the job was given up, and harms hit as many of its
    runs as a killer may have."""
    runs, error = job.runs[step], outcome["type"]
    if "FAILURE" in job.sent.get("ends", ()) and error not in RUNNER_ERRORS:
        if not runs:
            yield "failed", f"{step} with {error}, and never began"
    elif error != GIVEN_UP:
        if not any(history.outcomes.get((job.sent["job"], other)) for other in job.steps[:-1]):
            yield "failed", f"{step} with {error}"
    # A message that was published by hand with the task id of a step stores its result there.
    elif all((hit := _hit(history, group)) < 3 for group in (*job.by_hand.values(), runs)):
        strikes, for_nothing = _strikes(history, job, step)
        if for_nothing or strikes < 3:
            text = f"{step} after {len(runs)} runs, {hit} of them hit by a harm"
            yield "innocent killed", f"{text}; {for_nothing} of its {strikes} strikes unexplained"


def _strikes(history: History, job: Job, step: str) -> tuple[int, int]:
    """Return the number of strikes of a step, and how many of them no harm explains. A strike needs
    a harm to the worker that it names, shortly before; if the job had no run there (a worker may
    die while it decodes a job), a harm that ended or froze that worker. One harm to a worker does
    not explain two strikes."""
    runs, explained, unexplained = job.runs[step], set(), 0
    of_step = [s for s in history.strikes if (s["job"], s["step"]) == (job.sent["job"], step)]
    for strike in sorted(of_step, key=lambda strike: float(strike["struck"])):
        worker, struck = strike["worker"], strike["struck"]
        there = [(run, until) for run, until in _followed(runs) if run.line["worker"] == worker]
        harms = [harm for run, until in there for harm in history.befell(run, until)]
        harms += [h for h in history.harms if h.get("pid") is None and not h.get("cut")]
        for harm in harms:
            soon = harm["at"] <= struck + ROUNDED and struck <= harm["until"] + UNSETTLED
            if worker in harm["workers"] and soon and (worker, id(harm)) not in explained:
                explained.add((worker, id(harm)))
                break
        else:
            unexplained += 1
    return len(of_step), unexplained


def _hit(history: History, runs: list[Run]) -> int:
    """Return how many of the runs were hit by a harm."""
    return sum(any(history.befell(run, until)) for run, until in _followed(runs))


def _followed(runs: list[Run]) -> Iterator[tuple[Run, float]]:
    """Yield each run with the time at which the next one began."""
    return zip(runs, [*(run.at for run in runs[1:]), float("inf")], strict=False)


def _unfinished(job: Job, step: str, state: str, ends: list[str]) -> Iterator[tuple[str, str]]:
    """Yield a verdict on a step that never ended, or whose result has a state that it must not."""
    if not job.ended(step):
        if all(map(job.ended, before := job.before(step))):
            text = f"{step} has {len(job.runs[step])} starts and no end"
            yield "stuck" if before else "lost", text
    elif state not in ends:
        yield "stuck", f"{step} ended, and its result is {state}, and not {' or '.join(ends)}"


def _of_pill(history: History, job: Job) -> Iterator[tuple[str, str]]:
    """Yield the verdicts on a job that kills its process or stops its worker."""
    [step] = job.steps
    runs, stops = job.runs[step], job.sent.get("stops", False)
    # A run that a harm ended has not shown that the job kills.
    excused = sum(
        # The server forgot the run, and the strike for it.
        history.forgot(run, runs[-1].at)
        or any(
            harm.get("job") != job.sent["job"] and (stops or harm["kind"] != "pill")
            for harm in history.befell(run, min(until, run.at + UNSETTLED))
        )
        for run, until in _followed(runs)
    )
    if stops == KILLED_SOON:
        own = [strike for strike in history.strikes if strike["job"] == job.sent["job"]]
        excused += min(len(own), STRIKES_BEFORE_THE_LAST)
    if len(runs) > job.sent["pill"] + excused:
        yield "pill", f"{len(runs)} runs, {excused} of them cut short by something else"
    if history.gone(job, step) or job.sent.get("doubt"):
        return
    if "shared" in job.sent:
        if not runs:
            yield "lost", f"{step} never began"
        return
    state = history.outcomes.get((job.sent["job"], step), {"state": "SUCCESS"})["state"]
    # A worker that was told to stop may wait for the end of the job.
    ended = stops and state == "SUCCESS" and job.ended(step)
    if state != "FAILURE" and not ended:
        yield "stuck", f"{len(runs)} runs, and the state of its result is {state}"


def _order(history: History) -> Iterator[str]:
    """Yield the jobs that began before a job that was sent earlier, on a queue that one worker
    serves one job after the other, unless a harm hit a worker of that queue between the two."""
    queues: dict[str, list[Job]] = defaultdict(list)
    for job in history.jobs.values():
        if "order" in job.sent and job.runs[job.steps[0]] and not job.sent.get("doubt"):
            queues[job.sent["order"]].append(job)
    for queue, jobs in queues.items():
        workers = {line["worker"] for line in history.workers if line["queue"] == queue}
        harms = [
            harm
            for harm in history.harms
            if harm["workers"] and (not workers or workers.intersection(harm["workers"]))
        ]
        before, latest = jobs[0], 0.0
        for job in sorted(jobs, key=lambda job: float(job.sent["at"])):
            began = job.runs[job.steps[0]][0].at
            if began >= latest:
                before, latest = job, began
            elif not any(
                harm["at"] <= latest and harm["until"] + UNSETTLED >= before.sent["at"]
                for harm in harms
            ):
                name, gap = before.sent["job"], latest - began
                yield f"{job.sent['job']}: began {gap:.3f} s before {name}, which was sent earlier"


def _starved(history: History) -> Iterator[str]:
    """Yield the jobs that much later jobs overtook: that distinguishes a lost slot from a busy
    machine, on which all jobs of a queue wait alike. (Jobs with a priority are left out: more
    urgent jobs may overtake them; and if a worker has claimed some of them, they may overtake each
    other.)"""
    rivals: dict[tuple[Any, ...], list[tuple[float, float, Job]]] = defaultdict(list)
    for job in history.jobs.values():
        runs = job.runs[job.steps[0]]
        if "queue" in job.sent and runs and not job.sent.keys() & {"doubt", "priority"}:
            key = (job.sent["queue"], "due" in job.sent)
            ready = float(job.sent.get("due", job.sent["at"]))
            rivals[key].append((ready, runs[0].at, job))
    for jobs in rivals.values():
        jobs.sort(key=lambda rival: rival[0], reverse=True)
        later, first = 0, float("inf")  # the first start of all that was ready so much later
        for ready, began, job in jobs:
            while jobs[later][0] >= ready + OVERTAKEN:
                first = min(first, jobs[later][1])
                later += 1
            if began > first + ALONGSIDE and not job.sent.get("pill"):
                yield f"{job.sent['job']}: waited {began - ready:.0f} s, overtaken by later ones"


def _silent(history: History) -> Iterator[str]:
    """Yield the places where no job begins for long while jobs are sent to their queue. A place
    counts, not a worker: if a worker is killed, the next one is started there at once."""
    place_of = {line["worker"]: line["place"] for line in history.workers}
    starts: dict[str, list[float]] = defaultdict(list)
    sent: dict[str, list[float]] = defaultdict(list)
    for job in history.jobs.values():
        sent[job.sent.get("queue", "")].append(float(job.sent["at"]))
        for run in chain.from_iterable((*job.runs.values(), *job.by_hand.values())):
            starts[place_of.get(run.line["worker"], "")].append(run.at)
    places = {line["place"]: line for line in sorted(history.workers, key=lambda line: -line["at"])}
    for place, first in places.items():
        queued = sorted(sent[first["queue"]])
        until = [at for at in queued[-1:] if at > max(starts[place], default=0.0)]
        for last, then in pairwise([first["at"], *sorted(starts[place]), *until]):
            meanwhile = bisect(queued, then) - bisect(queued, last)
            if then - last > SILENT and meanwhile >= BUSY:
                yield f"{place}: began nothing for {then - last:.0f} s, {meanwhile} were sent to it"


def _wasted(history: History) -> Iterator[str]:
    """Yield the processes that began nothing between their load and their end, while their worker
    continued."""
    latest: dict[str, float] = {}
    for line in history.unloads:
        latest[line["worker"]] = max(latest.get(line["worker"], 0.0), line["at"])
    used = {(line["worker"], line["pid"]) for line in history.works}
    for job in history.jobs.values():
        for run in chain.from_iterable((*job.runs.values(), *job.by_hand.values())):
            worker = run.line["worker"]
            used.add((worker, run.line["pid"]))
            latest[worker] = max(latest.get(worker, 0.0), run.at)
    for line in history.unloads:
        worker, pid = line["worker"], line["pid"]
        if (worker, pid) not in used and latest[worker] > line["at"] + STOPPED:
            yield f"{worker}: its process {pid} ended without a job at {line['at']:.1f}"


# -- the program


def read(path: Path) -> Iterator[Line]:
    """Yield the lines of a history file."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as text:
        yield from map(json.loads, text)


def report(history: History, most: int = 5) -> Iterator[str]:
    """Yield the report in lines. The last one begins with GOOD, UNEXPLAINED or NOT WHOLE."""
    troubles = judge(history)
    yield _said(size(history))
    kinds = Counter(harm["kind"] for harm in history.harms)
    yield "harms: " + ", ".join(f"{kinds[kind]} {kind}" for kind in sorted(kinds))
    for verdict, texts in troubles.items():
        yield f"{verdict:16} {len(texts):6}  {VERDICTS[verdict]}"
        yield from (f"    {text}" for text in texts[:most])
    if history.rest is None:
        yield "NOT WHOLE: the history ends before the end of the storm"
    elif count := sum(map(len, troubles.values())):
        yield f"UNEXPLAINED: {count}"
    else:
        yield "GOOD: nothing is unexplained"


def size(history: History) -> Counter[str]:
    """Return the number of jobs, steps, runs and harms."""
    jobs = history.jobs.values()
    steps = sum(len(job.steps) for job in jobs)
    runs = sum(len(runs) for job in jobs for runs in chain(job.runs.values(), job.by_hand.values()))
    return Counter(sent=len(jobs), steps=steps, runs=runs, harms=len(history.harms))


def _said(size: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in size.items())


def main(*paths: str) -> int:
    """Print a report of each history; return 0 if each of them is good."""
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
