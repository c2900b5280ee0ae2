"""Findings on workers, passes and beat, by the overview alone; called by ``health``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ..model.facts import HUNG, SILENT, STOPPING
from ..model.silence import watch_time
from ..model.verdict import Reason
from ..model.words import ago, number, passed, span
from .finding import Finding, Level
from .overview import DEATHS, LATELY

#: Why a worker was declared dead whose process may still run.
MAY_RUN = {reason.value for reason in (Reason.HUNG, Reason.DISCONNECTED, Reason.SILENT)}

#: Passes that may be missing before that is a finding: one may last, one is another worker's.
LATE_PASSES = 6

#: Seconds from which on a worker that is stopping is a warning: most deploys wait no longer.
STOPPING_LONG_S = 300.0


def of_owners(overview: Mapping[str, Any]) -> Iterator[Finding]:
    last = overview["last_pass"]
    alive = any(owner["verdict"] == "alive" for owner in overview["owners"])
    soon = alive and last is not None and last["age"] < LATE_PASSES * overview["reap_interval"]
    heard = {
        (owner["host"], owner["pid"])
        for owner in overview["owners"]
        if owner["verdict"] == "alive" and owner["state"] not in (SILENT, HUNG)
    }
    for owner in overview["owners"]:
        name = f"{owner['node'] or owner['owner']} on {owner['host']}"
        jobs, age = number(owner["in_flight"], "job"), owner["heartbeat_age"]
        if owner["state"] == HUNG:
            text = f"worker {name} is hung: its event loop does not turn; its {jobs} go to others"
            fix = (
                f"see on {owner['host']} what it waits for (py-spy dump --pid {owner['pid']}), "
                "then restart it"
            )
            yield Finding("critical", "hung-owner", text, fix)
        elif owner["verdict"] == "dead":
            one = owner["in_flight"] == 1
            holds = (
                f"its {jobs} {'waits' if one else 'wait'}"
                if owner["in_flight"]
                else "holds nothing"
            )
            level: Level = "critical" if owner["in_flight"] and not soon else "note"
            text = f"worker {name} is dead ({owner['reason']}), {holds}"
            fix = (
                f"the next pass, within {span(overview['reap_interval'])}, recovers what it held"
                if soon
                else f"run `{overview['command']} reap`"
            )
            yield Finding(level, "dead-owner", text, fix)
        elif owner["stopping_for"] is not None and owner["state"] == STOPPING:
            yield _stopping(owner, name)
        elif owner["state"] == SILENT and _is_former(owner, heard):
            text = f"worker {name} goes on under another name; {jobs} are left under this one"
            yield Finding("note", "former-owner", text, "the next passes recover what is left")
        elif owner["state"] == SILENT:
            level = "critical" if age >= owner["owner_ttl"] else "warning"
            text = f"worker {name} was not heard for {span(age)} and holds {jobs}"
            fix = (
                f"it is frozen or cut off: if pid {owner['pid']} there is this worker (`ps -fp`) "
                "and hangs, `kill -9` it; if its host is gone, any worker takes its jobs, or "
                f"`{overview['command']} reap --wait {watch_time(owner['owner_ttl']):.0f}`"
            )
            yield Finding(level, "silent-owner", text, fix)


def _is_former(owner: Mapping[str, Any], heard: Collection[tuple[str, int]]) -> bool:
    """Return whether a silent row has no record and its process is ``heard`` (host, pid) under
    another name: then that process is not frozen, and must not be killed."""
    return not owner["version"] and (owner["host"], owner["pid"]) in heard


def _stopping(owner: Mapping[str, Any], name: str) -> Finding:
    """Say what a stopping worker waits for, and for how long."""
    waits, seconds = owner["stopping_for"], owner["longest_run"]
    runs = f"{number(owner['running'], 'running job')}"
    which = "which" if owner["running"] == 1 else "of which one"
    longest = f", {which} has run for {span(seconds)}" if seconds else ""
    what = f"waits for {runs}{longest}" if owner["running"] else "runs no job any more"
    text = f"worker {name} has been stopping for {span(waits)} and {what}; it claims no more jobs"
    fix = (
        f"see what the job waits for (py-spy dump --pid {owner['pid']}); a second SIGTERM does not "
        "end it, SIGQUIT does: the job is requeued and counts one stop. A time limit ends such runs"
        if owner["running"]
        else f"see its log, and what pid {owner['pid']} waits for (py-spy dump)"
    )
    is_long = waits >= STOPPING_LONG_S
    return Finding("warning" if is_long else "note", "stopping-owner", text, fix if is_long else "")


def of_passes(overview: Mapping[str, Any]) -> Iterator[Finding]:
    last, oldest = overview["last_pass"], max((o["age"] for o in overview["owners"]), default=0.0)
    # No pass was due before the first worker registered.
    if min(oldest, last["age"] if last else oldest) < LATE_PASSES * overview["reap_interval"]:
        return
    since = "" if last is None else f" for {span(last['age'])}"
    text = f"no pass{since or ' is known of'}: no worker looks for dead ones"
    fix = "start a worker of an app that calls install(): it makes passes"
    heard = any(o["verdict"] == "alive" and o["state"] != SILENT for o in overview["owners"])
    if heard:
        soon = span(overview["reap_interval"])
        fix = f"a running worker makes one within {soon}; if none comes, see its log"
    # The server may have been away for as long, and be back for a moment.
    level: Level = "warning" if heard and last else "critical"
    yield Finding(level, "no-pass", text, f"{fix}, or run `{overview['command']} reap`")


def of_beats(overview: Mapping[str, Any]) -> Iterator[Finding]:
    """Of each app whose beat was ever seen, that it ticks no more."""
    now, least = overview["server_time"], overview["reap_interval"]
    for row in overview["beats"]:
        age = passed(row["at"], now)
        if age >= LATE_PASSES * max(least, row["interval"]):
            where = f"{row['host']} (pid {row['pid']})"
            text = (
                f"beat of app {row['app'] or '(no name)'} on {where} has not ticked for "
                f"{span(age)}, nothing of its schedule is sent"
            )
            fix = "see its log and restart it; a week after its last tick it is forgotten"
            yield Finding("warning", "beat-silent", text, fix)


def of_deaths(overview: Mapping[str, Any]) -> Iterator[Finding]:
    now = overview["server_time"]
    back = {owner["node"] for owner in overview["owners"] if owner["verdict"] == "alive"}
    away = [row for row in overview["deaths"] if (row["node"] or None) not in back]
    lately = [row for row in away if passed(row["at"], now) <= LATELY]
    for row in lately[:1]:
        name, reason = row["node"] or row["owner"], row["reason"]
        may_run = reason in MAY_RUN
        verb = "was declared dead" if may_run else "died"
        text = f"worker {name} {verb} {ago(row['at'], now)} ({reason}), {_fate(row)}"
        if len(lately) > 1:
            # The overview has the latest deaths alone.
            least = "at least " if len(overview["deaths"]) >= DEATHS else ""
            text += f", and {least}{len(lately) - 1} more died within the hour"
        fix = "see why (its host's kernel log tells of the OOM killer), and start it again"
        if reason == Reason.HUNG.value:
            fix = (
                f"its process still hangs unless somebody ended it: see on {row['host']} what it "
                f"waits for (py-spy dump --pid {row['pid']}), then restart it"
            )
        elif may_run:
            fix = (
                f"see whether host {row['host']} runs and reaches the server: if pid {row['pid']} "
                "still runs there, restart it"
            )
        yield Finding("note", "worker-died", text, fix)


def _fate(death: Mapping[str, Any]) -> str:
    """Say what became of the jobs of a dead worker."""
    recovered, killed = death["recovered"], death["killed"]
    parts = []
    if recovered:
        queues = "its queue" if recovered == 1 else "their queues"
        parts.append(f"its {number(recovered, 'job')} went back to {queues}")
    if killed:
        parts.append(f"{number(killed, 'job')} of it went to the dead set")
    return " and ".join(parts) or "it held no job"
