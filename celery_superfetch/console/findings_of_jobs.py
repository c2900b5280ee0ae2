"""Findings on queues, jobs, the dead set, the series of the charts and keys of another type, from
the overview alone: no command is sent. ``health`` calls it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from ..model.arguments import LISTED_MAX_CHARS, task_title
from ..model.foreign import one_line
from ..model.humanize import ago, number, passed, span
from ..model.strikes import STOPS_NAMED
from .finding import Finding, Level, some
from .links import View, job_name
from .overview import CAP_NEARLY_FULL, LATELY_S, LONG_RUN_S, OVERDUE_S, by_queue, is_full

#: Jobs that were dead-lettered within the hour, from which on that is a warning: one poison pill is
#: a note, several mean that a deploy, a dependency or an input is broken.
DEAD_LETTERED_MANY = 5

#: Seconds from which on a pause is a warning: a person may have forgotten it.
PAUSED_LONG_S = 3600.0

#: Seconds without a claim after which a queue with jobs and workers counts as stalled.
STALLED_S = 300.0


def of_queues(overview: Mapping[str, Any]) -> Iterator[Finding]:
    for row in overview["queues"]:
        if row["length"] is None:
            text = f"queue list {row['list']!r} is not a list: {row['error']}"
            fix = (
                "no job can be sent to it or claimed from it: find the program that uses this "
                "key, and rename the key or the queue"
            )
            view = View("queue", row["queue"])
            yield Finding("critical", "queue-type", text, fix, view)
    for row in by_queue(overview["queues"]):
        if not row["unserved"]:
            yield from _of_stalled(row, overview)
            continue
        queue, fix = row["queue"], f"start a worker with -Q {shlex.quote(row['queue'])}"
        unserved, view = "no worker consumes it", View("queue", queue)
        if not row["known"]:
            unserved = "no worker with install() has consumed it"
            fix += ", or correct the name where the jobs are sent"
            if overview["stock_consumers"]:
                text = f"queue {queue}: {number(row['waiting'], 'job')}, {unserved}"
                fix += ". If stock workers consume it, no action is needed"
                yield Finding("note", "unknown-queue", text, fix, view)
                continue
        if others := row["not_consuming"]:
            states = ", ".join(f"{count} {state}" for state, count in sorted(others.items()))
            unserved += f" ({states})"
        if row["waiting"]:
            since = f", oldest {span(row['oldest'])}" if row["oldest"] else ""
            text = f"queue {queue}: {number(row['waiting'], 'job')}{since}, {unserved}"
            yield Finding("critical", "no-consumer", text, fix, view)
        if row["overdue"] > OVERDUE_S:
            late = span(row["overdue"])
            jobs = number(row["parked"], "scheduled job")
            text = f"queue {queue}: {jobs}, the next due {late} ago, {unserved}"
            yield Finding("critical", "no-consumer", text, fix, view)
        if row["probation"]:
            text = f"queue {queue}: {number(row['probation'], 'job')} on probation, {unserved}"
            yield Finding("critical", "probation-unserved", text, fix, view)


def _of_stalled(row: Mapping[str, Any], overview: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for a queue that has workers, and whose next job none of them has claimed for
    ``STALLED_S``: its workers may be busy with long jobs."""
    if row["paused"] or (row["stalled"] or 0.0) < STALLED_S:
        return
    queue, since = row["queue"], span(row["stalled"])
    jobs, workers = number(row["waiting"], "job"), number(row["consumers"], "worker")
    text = f"queue {queue} does not move: {jobs}, {workers}, and none has been claimed for {since}"
    lists = {row["list"] for row in overview["queues"] if row["queue"] == queue}
    pools = [
        owner
        for owner in overview["owners"]
        if owner["verdict"] == "alive" and lists.intersection(owner["queues"])
    ]
    if pools and all(map(is_full, pools)):
        slots = sum(owner["slots"] for owner in pools)
        text += f"; {'its one slot is' if slots == 1 else f'all their {slots} slots are'} busy"
    see = f"{overview['command']} jobs --queue {shlex.quote(queue)} --state running"
    fix = (
        f"see the running jobs with `{see}`: start more workers, or terminate jobs that block them"
    )
    yield Finding("warning", "queue-stalled", text, fix, View("queue", queue))


def of_pauses(overview: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each paused queue."""
    for row in by_queue(overview["queues"]):
        if (pause := row["paused"]) is None:
            continue
        since = "" if pause["age"] is None else f" for {span(pause['age'])}"
        by = f" by {pause['by']}" if pause["by"] else ""
        waiting = row["waiting"] + row["probation"]
        wait = f"{number(waiting, 'job')} {'waits' if waiting == 1 else 'wait'}"
        text = f"queue {row['queue']} has been paused{since}{by}, {wait}"
        fix = (
            f"when its jobs may run, `{overview['command']} queue resume "
            f"{shlex.quote(row['queue'])}`"
        )
        is_long = pause["age"] is None or pause["age"] >= PAUSED_LONG_S
        level: Level = "warning" if is_long else "note"
        yield Finding(level, "queue-paused", text, fix, View("queue", row["queue"]))


def of_lost_jobs(overview: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for reserved jobs that the server has lost, in the latest event; until an
    hour after the last loss."""
    lost, now = overview["lost"], overview["server_time"]
    if lost["at"] is None or passed(lost["at"], now) > LATELY_S:
        return
    timing = f"found {ago(lost['at'], now)}"
    if lost["jobs"] > 1:
        timing = f"the first found {ago(lost['since'], now)} and the last {ago(lost['at'], now)}"
    text = (
        f"the server lost {number(lost['jobs'], 'job')} that workers had claimed and not "
        f"started, {timing}"
    )
    fix = (
        "publish again the jobs named in the workers' logs (`is lost`), and look for FLUSHALL, "
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
        have = "has" if len(rows) == 1 else "have"
        limit = f"{have} run for more than {span(LONG_RUN_S)}"
        text = f"{many} {limit}, {id} on {node} for {span(seconds)}"
        fix = (
            "see what it waits for (py-spy dump), or end it with Celery's `control terminate "
            f"SIGTERM {id}`; a time limit ends such runs"
        )
        conditions = {"state": "running", "longer": f"{LONG_RUN_S // 3600}h"}
        conditions |= {"task": task} if task else {}
        yield Finding("warning", "long-running-job", text, fix, View("jobs", conditions=conditions))


def of_stopped(overview: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield jobs that stops cut short too often for deploys alone: they may stop their workers."""
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
        "if these were not deploys, find what stops the worker: a signal, a control command or a "
        "memory limit. At its stop_limit the job is moved to the dead set"
    )
    yield Finding("warning", "stopped-job", text, fix, View("job", job_name(worst)))


def of_charts(overview: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding if there are so many series for the charts that a new queue gets none."""
    series = overview["chart_series"]
    if series["count"] >= series["limit"]:
        text = (
            f"the charts have {series['count']} of at most {series['limit']} series: further "
            "queues have none, and count only in the charts of all queues together"
        )
        fix = "see which programs make so many queues; a series without an event ends after a day"
        yield Finding("note", "chart-series", text, fix)


def of_wrong_keys(overview: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding if keys of this package hold another type, which another program wrote."""
    rows = overview["wrong_keys"]
    if not rows:
        return
    names = some(f"{row['key']} (a {row['held']}, must be a {row['must_be']})" for row in rows)
    level: Level = "warning"
    loss = "what they should hold is shown as empty"
    if any(row["needed"] for row in rows):
        level, loss = "critical", "workers cannot use them, and the jobs there are not shown"
    text = (
        f"another program wrote to {number(len(rows), 'key')} of celery_superfetch: {names}; {loss}"
    )
    fix = "find that program (redis-cli CLIENT LIST), and move its data away with RENAMENX"
    yield Finding(level, "key-type", text, fix)


def of_dead_set(overview: Mapping[str, Any]) -> Iterator[Finding]:
    dead, command = overview["dead_set"], overview["command"]
    if job := dead["newest"]:
        name = f"job {task_title(job['task'])}[{job['task_id'] or job['id']}]"
        text = (
            f"{name} was moved to the dead set {ago(job['at'], overview['server_time'])} "
            f"({job['reason']})"
        )
        remaining = dead["killed_lately"] - 1
        text += f", and {remaining} more within the hour" if remaining else ""
        fix = f"`{command} dead show {job['id']}` says why; fix it, then `dead retry`"
        level: Level = "warning" if dead["killed_lately"] >= DEAD_LETTERED_MANY else "note"
        yield Finding(level, "job-killed", text, fix, View("dead job", job["id"]))
    if (usage := dead["of_app"]) >= CAP_NEARLY_FULL * dead["limit"]:
        full = usage >= dead["limit"]
        loss = (
            "each further one deletes the oldest" if full else "beyond that the oldest are deleted"
        )
        text = f"the dead set holds {usage} of at most {dead['limit']} jobs: {loss}"
        fix = (
            f"see `{command} dead list`, then retry or delete jobs (`dead retry`, `dead "
            "delete`), or raise dead_limit"
        )
        yield Finding("warning", "dead-set-full", text, fix)
    yield from _of_floods(dead["caps"], command)
    if jobs := dead["unannounced"]:
        text = (
            f"failure notifications pending for {number(jobs, 'dead job')}: the callers are "
            "not informed yet"
        )
        fix = (
            "they wait on the queues of the jobs: check whether a worker of this app consumes "
            "them and whether the result backend answers. A stock worker discards them"
        )
        yield Finding("warning", "unannounced", text, fix)


#: Kind of dead jobs that have a cap of their own -> its name in a finding.
FLOOD_NAMES = {"never_ran": "jobs that never ran", "junk": "unparseable items"}


def _of_floods(usage: Mapping[str, Any], command: str) -> Iterator[Finding]:
    """Yield a finding for each kind of messages that never ran whose cap is nearly full."""
    for kind, noun in FLOOD_NAMES.items():
        row = usage[kind]
        if "flood" not in row:
            continue
        text = (
            f"the dead set holds {row['jobs']} of at most {row['most_jobs']} {noun} "
            f"({row['bytes'] / 2**20:.1f} of {row['most_bytes'] >> 20} MB): beyond that the "
            "oldest are deleted"
        )
        conditions = {}
        for condition, value in row["flood"].items():
            conditions[condition] = one_line(value, LISTED_MAX_CHARS)
            text += f"; most of the newest have the {condition} {conditions[condition]!r}"
        view = View("dead jobs", conditions=conditions)
        fix = (
            f"`{command} {view.command}` lists them: find their sender (a wrong queue, a "
            "producer that was deployed before its workers). Jobs that ran have their own limit"
        )
        yield Finding("warning", "dead-set-flooded", text, fix, view)
