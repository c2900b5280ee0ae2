"""Judges the history of a storm. It knows nothing of whoever ran the jobs, and needs Python alone:

    python evidence/checker.py HISTORY.jsonl[.gz] ...

A history has one JSON line for each event, in any order; `at` is in seconds since 1970.

- ``send``: a ``job`` of a ``kind``, with the names of its ``steps`` in the order in which one hands
  on the next; ``parts``: how many of them begin together (those of a chord), and then what its body
  is to be given (``values``). ``due``: not before that. ``order``: the name of a queue that one
  worker serves, one job after the other. ``pill``: how often a job that kills whoever runs it may
  run; it ``stops`` its whole worker instead: then it may also come to its end. ``ends``: in which
  states its result may be (SUCCESS alone, where there are none). ``queue``, ``priority``: where it
  was sent. ``until``: when the sender had an answer. ``doubt``: that was an error, so that it may
  have been sent or not. ``shared``: other jobs have its task id, so that it has no result.
- ``start`` and ``end``: a ``run`` of a ``step`` of a ``job``, by process ``pid`` of a ``worker``,
  which came by a ``message``: whoever publishes a step twice makes two. ``given``: a body's values.
  ``by`` and ``part``: a run published this one by hand, besides the steps of its job.
- ``hand``: a ``run`` published this ``part`` by hand, once; ``doubt``, if it got an error. If
  ``once``, the message of another run may stand for it (a retry is a step of the job).
- ``worker``: one was started at a ``place`` that serves a ``queue``.
- ``unload``: a process ``pid`` of a pool, which takes long to load, ends in order.
- ``work``: such a process began a ``task`` that was not sent as a job.
- ``strike``: whoever ran the jobs counts it against a ``step`` of a ``job`` that is given up that
  its ``worker`` was lost, as was found at ``struck``.
- ``harm``: its ``kind``, when it began (``at``) and was over (``until``), the ``workers`` that it
  hit, and the one ``pid`` of theirs, if it was one process alone. ``cut``: they lost connections.
  One that hit no worker (a pool was told to shrink, or the server to close idle connections)
  excuses nothing. ``back``: the server came back as it was at that time. Then a job that was not
  settled by then may run again as soon as the server is killed, and publish its steps once more;
  and what was sent after that time and before the server was back may be lost. That holds for the
  body of a chord, too, whose last part ended in this time: its parts are counted elsewhere. It
  holds for no other step: the job that publishes it is in the snapshot, and runs again.
- ``outcome``: of a step whose result is no success: its ``state``, and the ``type`` of a failure.
- ``rest``: nothing is under way any more, or ``waits`` somewhere; without it this is not whole.
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

#: Seconds after a run's end within which a harm may still be why there is another: its ack may not
#: have come through. (A worker that reconnects waits for a reply, and 2 and 4 s between its tries.)
UNSETTLED = 15.0

#: Seconds after its connections were cut for which a worker may be without (it tries again after 2
#: and 4 s). What runs then cannot be acked, and who is not heard is soon taken for dead.
CUT_OFF = 6.0

#: Seconds after the start of a job that stops its worker until nothing of that worker is left.
STOPPED = 30.0

#: How a job stops its worker, if a kill follows the signal a second later. The worker may not have
#: reported by then that it stops. Then that run is a strike, and counted apart from the stops: at
#: the third strike the job is given up as well.
KILLED_SOON, STRIKES_BEFORE_THE_LAST = "TERM, then KILL", 2

#: Seconds by which the time of a strike may be too early: a runner may count whole ones.
ROUNDED = 1.0

#: Seconds by which a job may be overtaken by later ones (a worker that holds it freezes or dies,
#: several times over), and for which a place may begin nothing though jobs are sent to it. Both are
#: a multiple of what harms explain: a slot or a worker that is lost without an end goes beyond.
OVERTAKEN, SILENT = 45.0, 90.0
#: Seconds within which two processes of a pool begin in any order; and within which a worker that
#: thaws begins a run whose permit it had looked at before the freeze.
ALONGSIDE, THAWED = 0.5, 0.05
#: So many sent jobs show that a silent place had something to do.
BUSY = 5

#: Errors by which whoever runs the jobs ends one, which the job itself does not raise.
GIVEN_UP, RUNNER_ERRORS = "PoisonPill", ("PoisonPill", "WorkerLostError")

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
    "starved": "began long after jobs that were sent long after it",
    "silent": "a place began nothing for long, though jobs were sent to it",
    "wasted": "a process of a pool was loaded and ended for nothing",
    "waiting": "messages wait or are in flight, though nothing runs any more",
}


@dataclass
class Run:
    """One start of one step."""

    line: Line
    at: float
    ended: float | None = None


@dataclass
class Job:
    """What was sent, and all its runs by their steps."""

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
        """What has to end before a step is handed on; nothing comes before the first ones."""
        at, parts = self.steps.index(step), self.sent.get("parts", 1)
        return [] if at < parts else self.steps[: parts if parts > 1 else at]


@dataclass
class History:
    jobs: dict[str, Job]
    harms: list[Line]
    outcomes: dict[tuple[str, str], Line]
    rest: Line | None
    workers: list[Line]
    unloads: list[Line]
    works: list[Line]
    strikes: list[Line]

    def owes(self, job: Job, step: str) -> bool:
        """Whether a step that never began should have: not one that may not have been sent, nor
        one after another that was given up, of which its caller was told."""
        keys = [(job.sent["job"], other) for other in job.before(step)]
        given_up = any(self.outcomes.get(key, {}).get("state") == "FAILURE" for key in keys)
        return not given_up if keys else not job.sent.get("doubt")

    @cached_property
    def restores(self) -> list[Line]:
        """The harms after which the server was as it had been before."""
        return [harm for harm in self.harms if "back" in harm]

    def forgot(self, run: Run, later: float) -> bool:
        """Whether the server forgot that a run was settled before another began."""
        return any(_undid(harm, run) and later >= harm["at"] for harm in self.restores)

    def copies(self, job: Job, step: str) -> int:
        """How often a server forgot that a step was published: a run before it came again."""
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
        """Whether the server may have lost a step with all that it forgot."""
        return any(_sent_since(h, job, step) or _body_since(h, job, step) for h in self.restores)

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


def _undid(harm: Line, run: Run) -> bool:
    """Whether a server came back as it was before it knew that a run was settled."""
    settled = float("inf") if run.ended is None else run.ended + UNSETTLED
    return bool(run.at <= harm["until"] + CUT_OFF and settled >= harm["back"])


def _sent_since(harm: Line, job: Job, step: str) -> bool:
    """Whether a job was sent after the snapshot, and nothing after that publishes the step."""
    over, sent = harm["until"] + CUT_OFF, job.sent
    runs = [run for name in job.before(step) for run in job.runs[name]]
    since = harm["back"] <= sent.get("until", sent["at"]) and sent["at"] <= harm["until"]
    return since and all(run.at <= over and (run.ended or 0) <= over for run in runs)


def _body_since(harm: Line, job: Job, step: str) -> bool:
    """Whether a step is the body of a chord whose last part first ended after the snapshot."""
    parts = job.before(step)
    if not job.sent.get("values") or not parts or not all(map(job.ended, parts)):
        return False
    last = max(min(job.ends(part)) for part in parts)
    return bool(harm["back"] - UNSETTLED <= last <= harm["until"] + CUT_OFF)


def load(lines: Iterable[Line]) -> History:
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
    at, sent = start["at"], jobs[start["job"]].sent if start["job"] in jobs else start
    soon = [
        h for h in freezes if 0 <= at - h["until"] <= THAWED and start["worker"] in h["workers"]
    ]
    return float(min([at, *(h["at"] for h in soon if sent.get("due", sent["at"]) <= h["at"])]))


def _own_harm(job: Job, start: Line) -> Iterator[Line]:
    """A killer is a harm to all that runs in its process; what stops its worker, in all of it."""
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
    """Verdict -> what it found, each with the job's name first."""
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
    """All that can be wrong with a job that kills nobody."""
    for step in job.steps:
        runs = job.runs[step]
        yield from _repeated(history, job, step, runs)
        due = job.sent.get("due")
        if due and runs and runs[0].at < due:
            yield "early", f"{step} began {due - runs[0].at:.3f} s before its time"
        ends = job.sent.get("ends", ["SUCCESS"])
        # The result of a job that may not have been sent is not asked for.
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
    """Each message that a run published by hand runs, and none is doubled. (What was published in
    the moment of a crash, and not written down, may run.)"""
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
    """A failure is excused where it was given up after as many harms as a killer has runs."""
    runs, error = job.runs[step], outcome["type"]
    if "FAILURE" in job.sent.get("ends", ()) and error not in RUNNER_ERRORS:
        if not runs:
            yield "failed", f"{step} with {error}, and never began"
    elif error != GIVEN_UP:
        if not any(history.outcomes.get((job.sent["job"], other)) for other in job.steps[:-1]):
            yield "failed", f"{step} with {error}"
    # What was published by hand under the id of a step stores its result there.
    elif all((hit := _hit(history, group)) < 3 for group in (*job.by_hand.values(), runs)):
        strikes, for_nothing = _strikes(history, job, step)
        if for_nothing or strikes < 3:
            text = f"{step} after {len(runs)} runs, {hit} of them hit by a harm"
            yield "innocent killed", f"{text}; {for_nothing} of its {strikes} strikes unexplained"


def _strikes(history: History, job: Job, step: str) -> tuple[int, int]:
    """How many strikes a step has, and how many of them no harm explains. A strike without a run
    (whoever decodes a job may die of that) needs a harm that ended or froze the very worker that is
    said to have been lost, shortly before. No harm to a worker explains two strikes."""
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
    """How many of the runs a harm befell."""
    return sum(any(history.befell(run, until)) for run, until in _followed(runs))


def _followed(runs: list[Run]) -> Iterator[tuple[Run, float]]:
    """Each run, and when the next one began."""
    return zip(runs, [*(run.at for run in runs[1:]), float("inf")], strict=False)


def _unfinished(job: Job, step: str, state: str, ends: list[str]) -> Iterator[tuple[str, str]]:
    if not job.ended(step):
        if all(map(job.ended, before := job.before(step))):
            text = f"{step} has {len(job.runs[step])} starts and no end"
            yield "stuck" if before else "lost", text
    elif state not in ends:
        yield "stuck", f"{step} ended, and its result is {state}, and not {' or '.join(ends)}"


def _of_pill(history: History, job: Job) -> Iterator[tuple[str, str]]:
    [step] = job.steps
    runs, stops = job.runs[step], job.sent.get("stops", False)
    # One that something else ended has not shown yet that it kills.
    excused = sum(
        # The server forgot it, and what it had counted.
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
    # The worker that is to stop may wait for it.
    ended = stops and state == "SUCCESS" and job.ended(step)
    if state != "FAILURE" and not ended:
        yield "stuck", f"{len(runs)} runs, and its caller was told {state}"


def _order(history: History) -> Iterator[str]:
    """One worker, one job after the other: what was sent first begins first, but where a harm came
    to a worker of that queue between its sending and its start."""
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
    """Jobs that were overtaken by far: that tells a lost slot from a busy machine, where all that
    was sent to a queue waits alike. (Not those with a low priority: they are overtaken by right,
    and where others press them, in a worker that holds some of them, by each other.)"""
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
    """Places where no job begins while jobs are sent to their queue, whoever works there: a worker
    that is killed is started again at once."""
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
    """Processes that began nothing between their load and their end, while their worker went on."""
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
        yield f"UNEXPLAINED: {count}"
    else:
        yield "GOOD: nothing is unexplained"


def size(history: History) -> Counter[str]:
    """How much was tried."""
    jobs = history.jobs.values()
    steps = sum(len(job.steps) for job in jobs)
    runs = sum(len(runs) for job in jobs for runs in chain(job.runs.values(), job.by_hand.values()))
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
