"""What is wrong, by the overview alone, and what to do about it; pure functions."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ..inspector import Inspector
from ..model.arguments import task_title
from ..model.facts import HUNG, SILENT, STOPPING
from ..model.silence import watch_time
from ..model.strikes import STOPS_NAMED
from ..model.words import ago, number, passed, span
from .overview import LATELY, by_need, by_queue, overview_of

#: Passes that may be missing before somebody is told: one may last, one is another's turn.
LATE_PASSES = 6

#: Shares of a limit.
NEAR, FULL = 0.8, 0.95

#: Bytes that a replica may lag: what a busy server sends in a moment.
LAG = 16 * 1024 * 1024

#: Seconds from which on a worker that is stopping is a warning: most deploys wait no longer.
STOPPING_LONG_S = 300.0

#: Jobs that were dead-lettered within the hour, from which on that is a warning: one poison pill is
#: a note, several mean that a deploy, a dependency or an input is broken.
DEAD_LETTERED_MANY = 5

Level = Literal["critical", "warning", "note"]
LEVELS: tuple[Level, ...] = ("critical", "warning", "note")


class Finding(NamedTuple):
    """One thing that is to be known of."""

    level: Level
    #: For programs; it stays the same from version to version.
    code: str
    text: str
    #: What to do; empty where nothing is to be done.
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.text}: {self.fix}." if self.fix else f"{self.text}."


class Judged(NamedTuple):
    """What `status` and the page show."""

    verdict: str
    worst: Finding | None  # what the verdict tells of
    findings: list[Finding]  # and all others
    overview: Mapping[str, Any]
    owners: list[dict[str, Any]]
    queues: list[dict[str, Any]]

    def document(self, wide: bool) -> dict[str, Any]:
        """Return all as data. Without ``wide`` it leaves out the lists of a queue's other
        priorities that hold nothing: of five rows of an idle queue four say no more than the first
        one."""
        from .status import without_empty_lists  # a probe goes without

        all_findings = [*filter(None, [self.worst]), *self.findings]
        overview = self.overview if wide else without_empty_lists(self.overview)
        return {"findings": [finding._asdict() for finding in all_findings], **overview}

    def print(self, tables: Any, wide: bool) -> None:
        from .status import print_status

        print_status(tables, self, wide)

    def print_verdict(self, tables: Any) -> None:
        from .status import print_verdict

        print_verdict(tables, self)


def judge(inspector: Inspector) -> Judged:
    """All there is to see, and how it is, for the core's `status`."""
    return judged(overview_of(inspector))


def judged(overview: Mapping[str, Any]) -> Judged:
    all_findings = findings(overview)
    line = verdict(all_findings, overview)
    worst = all_findings.pop(0) if all_findings and all_findings[0].level != "note" else None
    rows = by_need(overview["owners"]), by_queue(overview["queues"])
    return Judged(line, worst, all_findings, overview, *rows)


def findings(overview: Mapping[str, Any]) -> list[Finding]:
    """All that is to be known of what an inspector saw, worst first."""
    all_findings = [
        *_queues(overview),
        *_owners(overview),
        *_long_runs(overview),
        *_stopped(overview),
        *_passes(overview),
        *_beats(overview),
        *_deaths(overview),
        *_restarts(overview),
        *_lost_jobs(overview),
        *_server(overview["server"]),
        *_dead_set(overview),
    ]
    if not any(owner["verdict"] == "alive" for owner in overview["owners"]):
        text = "no live worker is registered"
        all_findings.insert(0, Finding("critical", "no-worker", text, "start a worker"))
    if jobs := overview["unacked"]:
        text = f"{number(jobs, 'job')} unacked by stock workers, which work on them or were killed"
        fix = f"when no stock worker runs any more, `{overview['command']} migrate`"
        all_findings.append(Finding("warning", "unacked", text, fix))
    return sorted(all_findings, key=lambda finding: LEVELS.index(finding.level))


def verdict(all_findings: Sequence[Finding], overview: Mapping[str, Any]) -> str:
    """One line: that all is well, or what is worst and what to do about it."""
    bad = [finding for finding in all_findings if finding.level != "note"]
    if bad:
        suffix = f" ({len(bad) - 1} more below)" if len(bad) > 1 else ""
        return f"{bad[0].level.capitalize()}: {bad[0]}{suffix}"
    return f"All is well: {', '.join(summary(overview))}."


def summary(overview: Mapping[str, Any]) -> list[str]:
    """How many workers there are, how many jobs are in flight, wait and are dead, in words."""
    in_flight = sum(owner["in_flight"] for owner in overview["owners"])
    waiting = sum((row["length"] or 0) + row["probation"] for row in overview["queues"])
    alive = sum(owner["verdict"] == "alive" for owner in overview["owners"])
    dead, killed = overview["dead_set"]["size"], overview["dead_set"]["killed_lately"]
    return [
        number(alive, "worker"),
        f"{number(in_flight, 'job')} in flight",
        f"{waiting} waiting",
        f"{dead} in the dead set" + (f" ({killed} killed within the hour)" if killed else ""),
    ]


def _owners(overview: Mapping[str, Any]) -> Iterator[Finding]:
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
                f"it is frozen or cut off: if pid {owner['pid']} hangs, `kill -9` it; if its host "
                f"is gone, any worker takes its jobs, or `{overview['command']} reap --wait "
                f"{watch_time(owner['owner_ttl']):.0f}`"
            )
            yield Finding(level, "silent-owner", text, fix)


def _is_former(owner: Mapping[str, Any], heard: Collection[tuple[str, int]]) -> bool:
    """Whether a silent row has no record and its process is ``heard`` (host, pid) under another
    name: then that process is not frozen, and must not be killed."""
    return not owner["version"] and (owner["host"], owner["pid"]) in heard


def _stopping(owner: Mapping[str, Any], name: str) -> Finding:
    """Say what a stopping worker waits for, and for how long."""
    waits, seconds = owner["stopping_for"], owner["longest_run"]
    runs = f"{number(owner['running'], 'running job')}"
    longest = f", of which one has run for {span(seconds)}" if seconds else ""
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


def _lost_jobs(overview: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield whether the server lost jobs lately that workers had reserved."""
    lost, now = overview["lost"], overview["server_time"]
    if lost["at"] is None or passed(lost["at"], now) > LATELY:
        return
    text = (
        f"the server lost {number(lost['jobs'], 'job')} that workers had claimed and not started, "
        f"the last of them noticed {ago(lost['at'], now)}"
    )
    fix = (
        "publish again the jobs that the workers' logs name (`is lost`), and look for FLUSHALL, "
        "DEL, eviction, and a restart without persistence"
    )
    yield Finding("warning", "lost-jobs", text, fix)


def _long_runs(overview: Mapping[str, Any]) -> Iterator[Finding]:
    tasks: dict[str, list[tuple[int, str, str]]] = {}
    for owner in overview["owners"]:
        for job in owner["stuck"]:
            row = job["seconds"], job["id"], owner["node"] or owner["owner"]
            tasks.setdefault(job["task"], []).append(row)
    for task, rows in tasks.items():
        seconds, id, node = max(rows)
        many = f"{number(len(rows), 'job')} of {task_title(task)}"
        run = "runs" if len(rows) == 1 else "run"
        text = f"{many} {run} for longer than stuck_after, {id} on {node} for {span(seconds)}"
        fix = (
            f"see what it waits for (py-spy dump), or end it: `{overview['command']} jobs kill "
            f"{id}`; a time limit ends such runs by itself"
        )
        yield Finding("warning", "stuck-job", text, fix)


def _stopped(overview: Mapping[str, Any]) -> Iterator[Finding]:
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


def _queues(overview: Mapping[str, Any]) -> Iterator[Finding]:
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
        if row["probation"]:
            text = f"queue {queue}: {number(row['probation'], 'job')} on probation, {unserved}"
            yield Finding("critical", "probation-unserved", text, fix)


def _passes(overview: Mapping[str, Any]) -> Iterator[Finding]:
    last, oldest = overview["last_pass"], max((o["age"] for o in overview["owners"]), default=0.0)
    # None was due before somebody was there.
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


def _beats(overview: Mapping[str, Any]) -> Iterator[Finding]:
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


def _deaths(overview: Mapping[str, Any]) -> Iterator[Finding]:
    now = overview["server_time"]
    back = {owner["node"] for owner in overview["owners"] if owner["verdict"] == "alive"}
    away = [row for row in overview["deaths"] if (row["node"] or None) not in back]
    lately = [row for row in away if passed(row["at"], now) <= LATELY]
    for row in lately[:1]:
        name, jobs = row["node"] or row["owner"], number(row["recovered"], "job")
        queues = "its queue" if row["recovered"] == 1 else "their queues"
        text = (
            f"worker {name} died {ago(row['at'], now)} ({row['reason']}), its {jobs} went back to"
        )
        suffix = f", and {len(lately) - 1} more died within the hour" if len(lately) > 1 else ""
        fix = "see why (its host's kernel log tells of the OOM killer), and start it again"
        yield Finding("note", "worker-died", f"{text} {queues}{suffix}", fix)


def _restarts(overview: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield whether the server restarted while workers of its database ran."""
    uptime = overview["server"]["uptime_s"]
    if uptime is None or uptime > LATELY:
        return
    # The server says whole seconds, and a worker may have registered in its first one.
    before = [owner for owner in overview["owners"] if owner["age"] > uptime + 1]
    if before:
        text = f"the server restarted {span(uptime)} ago, while {number(len(before), 'worker')} ran"
        fix = "jobs that it accepted after its last save are lost: see its persistence"
        yield Finding("note", "restarted", text, fix)


def _server(server: Mapping[str, Any]) -> Iterator[Finding]:
    policy, used, most = (server[n] for n in ("eviction_policy", "used_memory", "maxmemory"))
    level: Level
    if policy not in (None, "noeviction"):
        expiring = policy.startswith("volatile-")
        level = "critical" if most and not expiring else "warning"
        lost = "strikes, and queues with x-expires" if expiring else "jobs"
        text = f"the server may evict {lost}: its maxmemory-policy is {policy}"
        fix = (
            "`redis-cli CONFIG SET maxmemory-policy noeviction`, and the same in its configuration"
        )
        yield Finding(level, "eviction", text, fix)
    uptime = server["uptime_s"]
    if evicted := server["evicted_keys"]:
        # Results and job histories expire, jobs do not.
        level = "note" if policy and policy.startswith("volatile-") else "critical"
        since = f" since its start {span(uptime)} ago" if uptime is not None else ""
        text = f"the server evicted {number(evicted, 'key')}{since}"
        text += "" if level == "note" else ", and jobs may be among them"
        fix = "set maxmemory-policy to noeviction; workers log each job that they find lost"
        yield Finding(level, "evicted", text, fix)
    if most and used >= NEAR * most:
        level = "critical" if used >= FULL * most else "warning"
        text = f"the server uses {used / most:.0%} of its maxmemory; at 100% no job can be sent"
        yield Finding(level, "memory", text, "raise maxmemory, or see which queue or result grows")
    if server["append_only"] is False and server["saves"] == "":
        text = (
            "the server keeps jobs in memory only (no AOF, no RDB saves): a restart loses all jobs"
        )
        fix = "`redis-cli CONFIG SET appendonly yes`, and the same in its configuration"
        yield Finding("warning", "no-persistence", text, fix)
    if not server["last_save_ok"]:
        text = "the server's last RDB save failed; it may refuse all writes"
        fix = "see its log: its disk is full, or there is no memory for the fork"
        yield Finding("critical", "save-failed", text, fix)
    if (lag := server["replica_lag_bytes"]) >= LAG:
        text = f"a replica lags {lag // 1024**2} MiB behind: a failover now loses that"
        yield Finding("warning", "replica-lag", text, "see its network and its load")


def _dead_set(overview: Mapping[str, Any]) -> Iterator[Finding]:
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
    if jobs := dead["unannounced"]:
        text = f"{number(jobs, 'dead-lettered job')} not reported to the caller yet"
        fix = (
            "a failure notification waits on the job's queue: see whether a worker of this app "
            "consumes that queue and whether the result backend answers. A stock worker discards "
            "the notification"
        )
        yield Finding("warning", "unannounced", text, fix)
