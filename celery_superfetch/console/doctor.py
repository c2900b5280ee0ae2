"""All that is wrong with an app and its server, or may become so, and what to do about each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError

from ..inspector import Inspector, Stray
from ..model.config import NOT_THE_USERS, REAP_ENTRY, REAP_TASK
from ..model.early_tasks import FIRST, has_copied_early_ack
from ..model.job import parse
from ..model.silence import watch_time
from ..model.version import __version__
from ..model.words import command, number, span
from .finding import Finding, Level, accepted, sorted_by_level
from .health import findings
from .overview import overview_of
from .permissions import refused

if TYPE_CHECKING:
    from celery import Celery

#: Names of tasks, or others, that one finding tells.
NAMED = 8

#: Seconds that two clocks may differ: what NTP leaves is a hundredth of it.
SKEW = 2.0

#: Messages looked at from each end of a queue list, lists looked at, and bytes after which no
#: further list is.
ENDS = 10
LISTS = 50
BYTES = 16 * 1024 * 1024


def diagnose(app: Celery, inspector: Inspector) -> list[Finding]:
    """Findings of the settings of an app whose task modules are loaded, of the server and of the
    overview, worst first; it changes nothing."""
    all_findings = of_settings(app)
    if inspector.deadlock:
        all_findings.append(Finding("warning", "redis-py", *inspector.deadlock))
    before = time.time()
    server = inspector.database.server_time() / 1000
    all_findings.extend(of_clocks(before, server, time.time()))
    try:
        overview = overview_of(inspector)
    except NoPermissionError as exc:
        text = f"the server does not let this user see how things are ({exc})"
        fix = (
            "ACL SETUSER <name> +scard +zcount, which `status`, `check` and the metrics need "
            "beside what a worker needs (docs/reference/options, Permissions)"
        )
        all_findings.append(Finding("warning", "no-overview", text, fix))
        all_findings.extend(_permissions(inspector, app.amqp.queues))
    else:
        all_findings.extend(findings(overview))
        all_findings.extend(of_versions(overview["owners"]))
        all_findings.extend(_permissions(inspector, (row["list"] for row in overview["queues"])))
        all_findings.extend(_tasks(app, inspector, overview))
        all_findings.extend(_strays(inspector, overview["queues"]))
    all_findings.extend(_orphans(inspector))
    return sorted_by_level(all_findings, accepted(inspector.database.config.accepted_findings))


def of_clocks(before: float, server: float, after: float) -> Iterator[Finding]:
    """Of the server's clock, which was read between two looks at this host's (s)."""
    ahead = before - server if before > server else min(0.0, after - server)
    if abs(ahead) > SKEW:
        how = "ahead of" if ahead > 0 else "behind"
        text = (
            f"the clock of this host is {span(abs(ahead))} {how} the server's: jobs with an ETA, a "
            "countdown or `expires` start too early or too late, or not at all"
        )
        fix = "set both by NTP (chronyc tracking says how far they are off)"
        yield Finding("warning", "clock-skew", text, fix)


def of_versions(owners: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    versions = Counter(owner["version"] or "of unknown version" for owner in owners)
    if {*versions} - {__version__}:
        releases = ", ".join(f"{name} ({count})" for name, count in sorted(versions.items()))
        text = f"workers run celery_superfetch {releases}; here it is {__version__}"
        fix = "they work together; end the rollout when it suits"
        yield Finding("note", "versions", text, fix)


def _permissions(inspector: Inspector, lists: Iterable[str]) -> Iterator[Finding]:
    denied = refused(inspector, lists)
    if denied is None:
        return
    who, unknown = "the server's ACL forbids this user", denied.unknown
    if forbidden := [name for name in denied.required if name not in unknown]:
        grant = " ".join(f"+{name}" for name in sorted(forbidden))
        text = f"{who} {some(forbidden)}: no worker of this user does its work"
        yield Finding("critical", "acl-required", text, f"ACL SETUSER <name> {grant}")
    if missing := [name for name in denied.required if name in unknown]:
        text = f"the server does not know {some(missing)}: no worker does its work here"
        fix = "see which services are tried: docs/operate/managed_redis"
        yield Finding("critical", "missing-required", text, fix)
    if denied.names:
        text = f"{who} the keys {some(denied.names)}"
        fix = "give it all of ours, the queues and kombu's: docs/reference/options, Permissions"
        yield Finding("critical", "acl-keys", text, fix)
    for name, lost in denied.optional.items():
        if name in unknown:
            fix = "nothing, if that may be so; else another plan or service"
            text = f"the server does not know {name}: {lost}"
            yield Finding("note", "missing-optional", text, fix)
        else:
            fix = f"ACL SETUSER <name> +{name}"
            yield Finding("note", "acl-optional", f"{who} {name}: {lost}", fix)


def _orphans(inspector: Inspector) -> Iterator[Finding]:
    try:
        orphans = inspector.orphans()
    except NoPermissionError:
        return
    if orphans:
        workers = number(len(orphans), "worker")
        keys = [_described(*inspector.unregistered(owner)) for owner in sorted(orphans)[:NAMED]]
        more = f" and {len(orphans) - NAMED} more" if len(orphans) > NAMED else ""
        text = (
            f"{workers} without a record, which was deleted or evicted; the jobs are still there: "
            f"{', '.join(keys)}{more}"
        )
        wait = watch_time(inspector.database.config.owner_ttl)
        fix = (
            f"delete none of these keys, that would lose the jobs; `{command()} reap --full --wait "
            f"{wait:.0f}` recovers them, unless a process still works on them"
        )
        yield Finding("warning", "orphans", text, fix)


def _described(key: str, jobs: int, age: float | None) -> str:
    since = f", the oldest claimed {span(age)} ago" if age is not None else ""
    return f"{key} ({number(jobs, 'job')}{since})"


def _strays(inspector: Inspector, rows: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """Of queues that no row is of."""
    try:
        strays = inspector.strays(row["queue"] for row in rows)
    except NoPermissionError:
        return
    if strays:
        queues = some(f"{queue} ({_of_stray(stray)})" for queue, stray in strays.items())
        text = f"jobs wait on queues that no worker with install() has served: {queues}"
        fix = (
            "see whether a sender misspells the name; a worker with -Q and that name runs them. "
            "Where stock workers serve it, all is well"
        )
        # What stock workers serve at this moment nobody can tell.
        level: Level = "note" if inspector.unacked.consumers() else "warning"
        yield Finding(level, "unknown-queue", text, fix)


def _of_stray(stray: Stray) -> str:
    """Say how many jobs are on a stray queue, and how old they are at least."""
    jobs = number(stray.jobs, "job")
    if not stray.idle_s:
        return jobs
    return f"{jobs},{' each' if stray.jobs > 1 else ''} at least {span(stray.idle_s)} old"


def _tasks(app: Celery, inspector: Inspector, seen: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield which jobs of the app's queues, and of its workers' queues, are of tasks that the app
    does not know. At both ends of each list, and at the parked jobs that are due next."""
    queues, registry = inspector.queues, app.tasks
    owners = [owner for owner in seen["owners"] if owner["app"] == (app.main or "")]
    ours = {name for owner in owners for name in owner["queues"]}
    rows = [
        row
        for row in seen["queues"]
        if (row["length"] or row["parked"])
        and (row["queue"] in app.amqp.queues or row["list"] in ours)
    ]
    unknown: dict[str, Counter[str]] = {}
    size = 0
    fullest = sorted(rows, key=lambda row: (row["length"] or 0) + row["parked"], reverse=True)
    for row in fullest[:LISTS]:
        payloads = queues.ends(row["list"], ENDS) if row["length"] else []
        if row["parked"]:
            payloads = [*payloads, *inspector.parked.first(row["list"], ENDS)]
        for payload in payloads:
            size += len(payload)
            task = parse(payload).task
            if task is not None and task not in registry:
                unknown.setdefault(row["queue"], Counter())[task] += 1
        if size > BYTES:
            break
    discarded = inspector.database.config.unknown_tasks == "discard"
    fate = "discard them" if discarded else "move them to the dead set in the end"
    for queue, tasks in unknown.items():
        text = (
            f"queue {queue}: of the jobs looked at, {tasks.total()} are of tasks that app "
            f"{app.main or '(no name)'} does not know, whose workers {fate}: {some(tasks)}"
        )
        fix = (
            "deploy workers before producers, import the module (`include`), or give the other app "
            "a queue of its own"
        )
        yield Finding("warning", "unknown-task", text, fix)


def of_settings(app: Celery) -> list[Finding]:
    return [*_install(app), *_task_options(app), *_options(app)]


def some(names: Iterable[str]) -> str:
    """The first few of some names, and how many there are beside them."""
    ordered = sorted(names)
    rest = f" and {len(ordered) - NAMED} more" if len(ordered) > NAMED else ""
    return ", ".join(ordered[:NAMED]) + rest


def _install(app: Celery) -> Iterator[Finding]:
    entries = map(dict, (app.conf.beat_schedule or {}).values())  # a ScheduleEntry has pairs, too
    if getattr(app, "_superfetch", None) is None:
        text = (
            "the app names the transport and nothing else: it acks early, nobody reaps, and no "
            "job that kills its worker is ever stopped"
        )
        yield Finding("warning", "not-installed", text, "call celery_superfetch.install(app)")
    elif not any(entry.get("task") == REAP_TASK for entry in entries):
        text = (
            f"beat_schedule has no {REAP_ENTRY}: it was taken out, or something replaced the "
            "schedule after install(). Beat looks for no dead workers"
        )
        fix = f"add to beat_schedule, do not replace it; or add the task {REAP_TASK!r} yourself"
        yield Finding("warning", "no-beat-entry", text, fix)


def _task_options(app: Celery) -> Iterator[Finding]:
    own = [task for task in app.tasks.values() if not task.name.startswith(NOT_THE_USERS)]
    early = [task for task in own if not task.acks_late]
    outdated = [task for task in early if app.conf.task_acks_late and has_copied_early_ack(task)]
    if outdated:
        clause = (
            "that were used before the settings were read: their jobs are acked before they run"
        )
        text = _named(outdated, f"{clause}, and a killed worker loses those that it runs")
        fix = f"read the settings and {FIRST}; or set acks_late=True on the tasks"
        yield Finding("warning", "outdated-task", text, fix)
    if chosen := [task for task in early if task not in outdated]:
        text = _named(chosen, "with acks_late=False, which a killed worker loses once they run")
        fix = "leave acks_late at install()'s default, unless a second run would do more harm"
        yield Finding("warning", "early-ack", text, fix)
    dropped = [task for task in own if task.acks_late and not task.reject_on_worker_lost]
    if dropped:
        clause = "which Celery drops when their pool process is lost"
        text = _named(dropped, f"with task_reject_on_worker_lost off, {clause}")
        fix = "leave it at install()'s default: such a job is recovered, and counted"
        yield Finding("warning", "reject-off", text, fix)
    silent = [t for t in own if t.ignore_result and not t.store_errors_even_if_ignored]
    if not app.conf.result_backend or str(app.conf.result_backend).startswith("disabled"):
        text = "there is no result_backend: no caller is told of a killed job, and none can wait"
        fix = "set one if anybody calls get(), or uses chords; else the dead set has what was "
        yield Finding("note", "no-results", text, f"{fix}killed")
    elif silent:
        text = _named(silent, "with ignore_result, of whose killed jobs no caller is told")
        fix = "where somebody waits for one, set store_errors_even_if_ignored on it"
        yield Finding("note", "ignored-results", text, fix)


def _named(tasks: Sequence[Any], clause: str) -> str:
    return f"{number(len(tasks), 'task')} {clause}: {some(task.name for task in tasks)}"


def _options(app: Celery) -> Iterator[Finding]:
    conf = app.conf
    if "visibility_timeout" in (conf.broker_transport_options or {}):
        text = "visibility_timeout does nothing here: no job comes back by a timeout"
        fix = "remove it from broker_transport_options when no stock worker is left"
        yield Finding("note", "visibility-timeout", text, fix)
    if conf.worker_prefetch_multiplier == 0 and not conf.get("worker_disable_prefetch"):
        text = (
            "worker_prefetch_multiplier is 0: one worker claims all that waits, and others that "
            "are free find nothing"
        )
        fix = "set it to 1 for long jobs, or to 4 (Celery's default) for short ones"
        yield Finding("warning", "prefetch-unbounded", text, fix)
