"""Findings on queues, jobs and the dead set, by the overview alone; called by ``health``."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from ..model.arguments import LISTED, task_title
from ..model.foreign import one_line
from ..model.strikes import STOPS_NAMED
from ..model.words import ago, number, passed, span
from .finding import Finding, Level
from .overview import LATELY, LONG_RUN_S, NEAR, OVERDUE_S, by_queue

#: Jobs that were dead-lettered within the hour, from which on that is a warning: one poison pill is
#: a note, several mean that a deploy, a dependency or an input is broken.
DEAD_LETTERED_MANY = 5


def of_queues(overview: Mapping[str, Any]) -> Iterator[Finding]:
    for row in overview["queues"]:
        if row["length"] is None:
            text = f"queue list {row['list']!r} is no list: {row['error']}"
            fix = "nobody can send to it or take from it: rename what lives under that key"
            yield Finding("critical", "queue-type", text, fix)
    for row in by_queue(overview["queues"]):
        if not row["unserved"]:
            continue
        queue, fix = row["queue"], f"start a worker with -Q {shlex.quote(row['queue'])}"
        unserved = "no worker consumes it"
        if others := row["not_consuming"]:
            states = ", ".join(f"{count} {state}" for state, count in sorted(others.items()))
            unserved += f" ({states})"
        if row["waiting"]:
            since = f", oldest {span(row['oldest'])}" if row["oldest"] else ""
            text = f"queue {queue}: {number(row['waiting'], 'job')}{since}, {unserved}"
            yield Finding("critical", "no-consumer", text, fix)
        if row["overdue"] > OVERDUE_S:
            late = span(row["overdue"])
            jobs = number(row["parked"], "scheduled job")
            text = f"queue {queue}: {jobs}, the next due {late} ago, {unserved}"
            yield Finding("critical", "no-consumer", text, fix)
        if row["probation"]:
            text = f"queue {queue}: {number(row['probation'], 'job')} on probation, {unserved}"
            yield Finding("critical", "probation-unserved", text, fix)


def of_lost_jobs(overview: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield how many jobs the server lost, in the latest event, that workers had reserved; until an
    hour after the last of them."""
    lost, now = overview["lost"], overview["server_time"]
    if lost["at"] is None or passed(lost["at"], now) > LATELY:
        return
    timing = f"found {ago(lost['at'], now)}"
    if lost["jobs"] > 1:
        timing = f"the first found {ago(lost['since'], now)} and the last {ago(lost['at'], now)}"
    text = (
        f"the server lost {number(lost['jobs'], 'job')} that workers had claimed and not started, "
        f"{timing}"
    )
    fix = (
        "publish again the jobs that the workers' logs name (`is lost`), and look for FLUSHALL, "
        "DEL, eviction, and a restart without persistence"
    )
    yield Finding("warning", "lost-jobs", text, fix)


def of_long_runs(overview: Mapping[str, Any]) -> Iterator[Finding]:
    tasks: dict[str, list[tuple[int, str, str]]] = {}
    for owner in overview["owners"]:
        for job in owner["long_runs"]:
            row = job["seconds"], job["id"], owner["node"] or owner["owner"]
            tasks.setdefault(job["task"], []).append(row)
    for task, rows in tasks.items():
        seconds, id, node = max(rows)
        many = f"{number(len(rows), 'job')} of {task_title(task)}"
        run = "runs" if len(rows) == 1 else "run"
        text = f"{many} {run} for more than {span(LONG_RUN_S)}, {id} on {node} for {span(seconds)}"
        fix = (
            "see what it waits for (py-spy dump), or end it with Celery's "
            f"`control terminate SIGTERM {id}`; a time limit ends such runs by itself"
        )
        yield Finding("warning", "long-running-job", text, fix)


def of_stopped(overview: Mapping[str, Any]) -> Iterator[Finding]:
    """Jobs that a deploy has cut short too often to be innocent: they may stop their workers."""
    jobs = overview["stopped"]
    if not jobs:
        return
    worst = jobs[0]
    text = (
        f"job {task_title(worst['task'])}[{worst['id'] or worst['digest']}] on queue "
        f"{worst['queue']} was cut short {worst['stops']} times because its worker was stopping"
    )
    text += f", and {len(jobs) - 1} more at least {STOPS_NAMED} times" if len(jobs) > 1 else ""
    fix = (
        "if these were no deploys, a job or a watcher stops the worker: look for a signal, a "
        "control command or a memory limit. At its stop_limit the job goes to the dead set"
    )
    yield Finding("warning", "stopped-job", text, fix)


def of_dead_set(overview: Mapping[str, Any]) -> Iterator[Finding]:
    dead, command = overview["dead_set"], overview["command"]
    if job := dead["newest"]:
        name = f"job {task_title(job['task'])}[{job['task_id'] or job['id']}]"
        text = f"{name} was killed {ago(job['at'], overview['server_time'])} ({job['reason']})"
        remaining = dead["killed_lately"] - 1
        text += f", and {remaining} more within the hour" if remaining else ""
        fix = f"`{command} dead show {job['id']}` says why; then mend it, and `dead retry`"
        level: Level = "warning" if dead["killed_lately"] >= DEAD_LETTERED_MANY else "note"
        yield Finding(level, "job-killed", text, fix)
    if (kept := dead["of_app"]) >= NEAR * dead["limit"]:
        full = kept >= dead["limit"]
        loss = "each further one drops the oldest" if full else "beyond that the oldest are dropped"
        text = f"the dead set holds {kept} jobs of {dead['limit']}: {loss}"
        fix = (
            f"see `{command} dead list`, then retry or delete jobs (`dead retry`, `dead delete`); "
            "or raise dead_limit"
        )
        yield Finding("warning", "dead-set-full", text, fix)
    yield from _of_floods(dead["kept"], command)
    if jobs := dead["unannounced"]:
        text = f"{number(jobs, 'dead-lettered job')} not reported to the caller yet"
        fix = (
            "a failure notification waits on the job's queue: see whether a worker of this app "
            "consumes that queue and whether the result backend answers. A stock worker discards "
            "the notification"
        )
        yield Finding("warning", "unannounced", text, fix)


#: Kind of dead jobs that have a cap of their own -> how a finding calls them.
FLOODS = {"never_ran": "jobs that never ran", "junk": "unparseable items"}


def _of_floods(kept: Mapping[str, Any], command: str) -> Iterator[Finding]:
    """Yield each kind of messages that never ran of which there is little room for more."""
    for kind, noun in FLOODS.items():
        row = kept[kind]
        if "flood" not in row:
            continue
        text = (
            f"the dead set holds {row['jobs']} {noun} of {row['most_jobs']} "
            f"({row['bytes'] / 2**20:.1f} of {row['most_bytes'] >> 20} MB): beyond that the oldest "
            "are dropped"
        )
        option = ""
        for condition, value in row["flood"].items():
            shown = one_line(value, LISTED)
            text += f"; most of the newest have the {condition} {shown!r}"
            option = f" --{condition} {shlex.quote(shown)}"
        fix = (
            f"`{command} dead list{option}` shows them: find their sender (a wrong queue, a "
            "producer that was deployed before its workers). Jobs that ran have their own limit"
        )
        yield Finding("warning", "dead-set-flooded", text, fix)
