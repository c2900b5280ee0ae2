"""Findings on workers, passes and beat, from the overview alone. ``health`` calls it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ..model.humanize import ago, number, passed, span
from ..model.owner_record import HUNG, SILENT, STOPPING
from ..model.staleness import watch_time
from ..model.verdict import Reason
from .finding import Finding, Level
from .links import View
from .overview import DEATHS_SHOWN, LATELY_S

#: Reasons for which a worker is declared dead although its process may still run.
MAY_RUN = {reason.value for reason in (Reason.HUNG, Reason.DISCONNECTED, Reason.SILENT)}

#: Passes that may be missing before that is a finding: one may last, one is another worker's.
LATE_PASSES = 6

#: Deaths within the hour from which on they are a warning; those of workers that were told to stop
#: do not count. A poison pill causes as many. In a fleet of more than 30 workers, a tenth of them.
DEATHS_MIN = 3

#: Seconds from which on a worker that is stopping is a warning: most deploys wait no longer.
STOPPING_LONG_S = 300.0


def of_owners(overview: Mapping[str, Any]) -> Iterator[Finding]:
    last = overview["last_pass"]
    alive = any(owner["verdict"] == "alive" for owner in overview["owners"])
    soon = alive and last is not None and last["age"] < LATE_PASSES * overview["reap_interval"]
    living = [
        owner
        for owner in overview["owners"]
        if owner["verdict"] == "alive" and owner["state"] not in (SILENT, HUNG)
    ]
    for owner in overview["owners"]:
        name = f"{owner['node'] or owner['owner']} on {owner['host']}"
        jobs, age = number(owner["in_flight"], "job"), owner["heartbeat_age"]
        view = View("worker", owner["owner"], short_name=owner["node"])
        if owner["state"] == HUNG:
            text = (
                f"worker {name} is hung: its event loop has stopped, and other workers recover "
                f"its {jobs}"
            )
            fix = (
                f"find out on {owner['host']} what it waits for "
                f"(py-spy dump --pid {owner['pid']}), then restart it"
            )
            yield Finding("critical", "hung-owner", text, fix, view)
        elif owner["verdict"] == "dead":
            is_one = owner["in_flight"] == 1
            holds = (
                f"its {jobs} {'waits' if is_one else 'wait'} to be recovered"
                if owner["in_flight"]
                else "it holds no job"
            )
            level: Level = "critical" if owner["in_flight"] and not soon else "note"
            text = f"worker {name} is dead ({owner['reason']}); {holds}"
            fix = (
                f"the next reap pass, within {span(overview['reap_interval'])}, recovers its jobs"
                if soon
                else f"run `{overview['command']} reap`"
            )
            yield Finding(level, "dead-owner", text, fix, view)
        elif owner["stopping_for"] is not None and owner["state"] == STOPPING:
            yield _stopping(owner, name)
        elif owner["state"] == SILENT and _is_former(owner, living):
            text = (
                f"worker {name} has registered again under another id; {jobs} are left under "
                "this one"
            )
            fix = "the worker requeues them itself, or the next reap passes recover them"
            yield Finding("note", "former-owner", text, fix, view)
        elif owner["state"] == SILENT:
            level = "critical" if age >= owner["owner_ttl"] else "warning"
            text = f"worker {name} is silent (no heartbeat for {span(age)}) and holds {jobs}"
            watch_s = watch_time(owner["owner_ttl"])
            soon_s = max(overview["reap_interval"], watch_s - age)
            fix = (
                "it is frozen or cut off from Redis. If its host is gone, other workers recover "
                f"its jobs within about {span(soon_s)} (owner_ttl={span(owner['owner_ttl'])}); if "
                f"none runs, `{overview['command']} reap --wait {watch_s:.0f}` does so within as "
                f"many seconds. If pid {owner['pid']} on that host is this worker (`ps -fp`) and "
                "hangs, `kill -9` it, or delete its pod with `--grace-period=1`"
            )
            yield Finding(level, "silent-owner", text, fix, view)


def _is_former(owner: Mapping[str, Any], living: Collection[Mapping[str, Any]]) -> bool:
    """Return whether the process of a silent row is among the ``living`` under another name: then
    it is not frozen, and must not be killed. A row without a record has only a host and a pid."""
    if owner["version"]:
        return any(row["owner"] == owner["successor"] for row in living)
    return any((row["host"], row["pid"]) == (owner["host"], owner["pid"]) for row in living)


def _stopping(owner: Mapping[str, Any], name: str) -> Finding:
    """Return the finding of a stopping worker: the jobs that it waits for, and for how long."""
    waits, seconds = owner["stopping_for"], owner["longest_run"]
    runs = f"{number(owner['running'], 'running job')}"
    which = "which" if owner["running"] == 1 else "of which one"
    longest = f", {which} has run for {span(seconds)}" if seconds else ""
    activity = f"waits for {runs}{longest}" if owner["running"] else "runs no more jobs"
    text = (
        f"worker {name} has been stopping for {span(waits)} and {activity}; it claims no more jobs"
    )
    dump = f"py-spy dump --subprocesses --pid {owner['pid']}"  # the pool's processes, too
    fix = (
        f"see what the job waits for ({dump}); a second SIGTERM does "
        "not cut it short, SIGQUIT does (not with threads): the job is requeued, and gets one "
        "stop. A time limit prevents such runs"
        if owner["running"]
        else f"check its log, and what it waits for ({dump})"
    )
    view = View("worker", owner["owner"], short_name=owner["node"])
    if waits < STOPPING_LONG_S:
        return Finding("note", "stopping-owner", text, about=view)
    return Finding("warning", "stopping-owner", text, fix, view)


def of_passes(overview: Mapping[str, Any]) -> Iterator[Finding]:
    last, oldest = overview["last_pass"], max((o["age"] for o in overview["owners"]), default=0.0)
    # No pass was due before the first worker registered.
    if min(oldest, last["age"] if last else oldest) < LATE_PASSES * overview["reap_interval"]:
        return
    since = "" if last is None else f" for {span(last['age'])}"
    text = f"no reap pass{since or ' is recorded'}: jobs of dead workers are not recovered"
    fix = "start a worker of an app that calls install()"
    living = any(o["verdict"] == "alive" and o["state"] != SILENT for o in overview["owners"])
    if living:
        soon = span(overview["reap_interval"])
        fix = f"a running worker makes one within {soon}; if none comes, check its log"
    # The server may have been away for as long, and be back for a moment.
    level: Level = "warning" if living and last else "critical"
    yield Finding(level, "no-pass", text, f"{fix}, or run `{overview['command']} reap`")


def of_beats(overview: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each app whose beat has ticked once and ticks no more."""
    now, least = overview["server_time"], overview["reap_interval"]
    for row in overview["beats"]:
        age = passed(row["at"], now)
        if is_beat_late(row, now, least):
            where = f"{row['host']} (pid {row['pid']})"
            text = (
                f"beat of app {row['app'] or '(no name)'} on {where} has not ticked for "
                f"{span(age)}: its scheduled tasks are not sent"
            )
            fix = (
                "check its log and restart it; if it was removed on purpose, see beat-silent in "
                "docs/operate/runbook"
            )
            yield Finding("warning", "beat-silent", text, fix)


def is_beat_late(row: Mapping[str, Any], now: str, reap_interval: float) -> bool:
    """Return whether a beat has not ticked for so long that it probably runs no more."""
    return passed(row["at"], now) >= LATE_PASSES * max(reap_interval, row["interval"])


def of_deaths(overview: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the latest death of a worker that has no successor of its name; or, if workers die
    again and again, the latest of these deaths, also while their successors run."""
    now = overview["server_time"]
    alive_nodes = {owner["node"] for owner in overview["owners"] if owner["verdict"] == "alive"}
    lately = [row for row in overview["deaths"] if passed(row["at"], now) <= LATELY_S]
    # A worker that was superseded was restarted by HUP.
    restarted = Reason.SUPERSEDED.value
    unasked = [row for row in lately if row["state"] != STOPPING and row["reason"] != restarted]
    is_series = len(unasked) >= min(max(DEATHS_MIN, len(alive_nodes) / 10), DEATHS_SHOWN)
    if is_series:
        lately = unasked
    else:
        lately = [row for row in lately if (row["node"] or None) not in alive_nodes]
    for row in lately[:1]:
        name, reason = row["node"] or row["owner"], row["reason"]
        may_run = reason in MAY_RUN
        verb = "was declared dead" if may_run else "died"
        text = f"worker {name} {verb} {ago(row['at'], now)} ({reason}), {fate_of(row)}"
        if len(lately) > 1:
            # The overview has the latest deaths alone.
            least = "at least " if len(overview["deaths"]) >= DEATHS_SHOWN else ""
            text += f", and {least}{len(lately) - 1} more died within the hour"
        cause = "see its log, and the kernel log of its host for the OOM killer"
        fix = f"find out why ({cause}), and start it again"
        if is_series:
            fix = (
                f"find out why ({cause}), and whether it was the same job each time "
                f"(`{overview['command']} jobs --state struck` and `dead list`)"
            )
        if reason == Reason.HUNG.value:
            fix = (
                f"its process hangs unless it was ended since: find out on {row['host']} what it "
                f"waits for (py-spy dump --pid {row['pid']}), then restart it"
            )
        elif may_run:
            fix = (
                f"check whether host {row['host']} is up and reaches the server. If the worker "
                f"still runs there (pid {row['pid']}, in its container if it is in one), restart "
                "the worker"
            )
        level: Level = "warning" if is_series else "note"
        short_name = "" if row["node"] in alive_nodes else row["node"]  # of its successor
        view = View("worker", row["owner"], short_name=short_name)
        yield Finding(level, "worker-died", text, fix, view)


def fate_of(death: Mapping[str, Any]) -> str:
    """Return the fate of a dead worker's jobs, as text."""
    recovered, killed = death["recovered"], death["killed"]
    parts = []
    if recovered:
        parts.append(f"{number(recovered, 'job')} recovered")
    if killed:
        parts.append(f"{number(killed, 'job')} moved to the dead set")
    return " and ".join(parts) or "it held no job"
