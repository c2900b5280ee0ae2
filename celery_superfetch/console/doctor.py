"""The examination of an app and its server: a finding, with its fix, for each fault or risk.

`superfetch doctor` calls ``diagnose``. It only reads: a death leaves nothing behind.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError

from ..inspector import Inspector, Stray
from ..model.config import INTERNAL_TASK_PREFIXES, REAP_ENTRY, REAP_TASK
from ..model.early_tasks import FIRST, has_copied_early_ack
from ..model.humanize import command, number, span
from ..model.job import parse
from ..model.staleness import watch_time
from ..model.version import __version__
from .finding import NAMES_LISTED, Finding, Level, accepted, some, sorted_by_level
from .health import findings
from .overview import overview_of
from .permissions import findings_of_permissions, refused

if TYPE_CHECKING:
    from celery import Celery

#: Seconds by which two clocks may differ: NTP leaves a hundredth of it.
CLOCK_SKEW_S = 2.0

#: Messages that are read from each end of a queue list, lists that are read, and bytes after which
#: no further list is read.
END_MESSAGES = 10
LISTS_READ = 50
LISTS_READ_BYTES = 16 * 1024 * 1024


def diagnose(app: Celery, inspector: Inspector) -> list[Finding]:
    """Return the findings of the app's settings, of the server and of the overview, worst first.
    The app's task modules have to be loaded. It changes nothing."""
    all_findings = of_settings(app)
    if inspector.deadlock:
        all_findings.append(Finding("warning", "redis-py", *inspector.deadlock))
    before = time.time()
    server = inspector.database.server_time() / 1000
    all_findings.extend(of_clocks(before, server, time.time()))
    try:
        overview = overview_of(inspector)
    except NoPermissionError as exc:
        text = (
            f"the server's ACL does not let this user read the state of workers and queues ({exc})"
        )
        fix = (
            "ACL SETUSER <name> +scard +zcount: `status`, `check` and the metrics need them in "
            "addition to what a worker needs (docs/reference/options, Permissions)"
        )
        all_findings.append(Finding("warning", "no-overview", text, fix))
        all_findings.extend(findings_of_permissions(refused(inspector, app.amqp.queues)))
    else:
        all_findings.extend(findings(overview))
        all_findings.extend(of_versions(overview["owners"]))
        lists = (row["list"] for row in overview["queues"])
        all_findings.extend(findings_of_permissions(refused(inspector, lists)))
        all_findings.extend(_tasks(app, inspector, overview))
        all_findings.extend(_strays(inspector, overview["queues"]))
    all_findings.extend(_orphans(inspector))
    return sorted_by_level(all_findings, accepted(inspector.database.config.accepted_findings))


def of_clocks(before: float, server: float, after: float) -> Iterator[Finding]:
    """Yield a finding if the server's clock differs from this host's, which was read ``before`` and
    ``after`` it (s)."""
    ahead = before - server if before > server else min(0.0, after - server)
    if abs(ahead) > CLOCK_SKEW_S:
        how = "ahead of" if ahead > 0 else "behind"
        text = (
            f"the clock of this host is {span(abs(ahead))} {how} the server's: jobs with an ETA, "
            "a countdown or `expires` start too early or too late, or not at all"
        )
        fix = "synchronize both with NTP (chronyc tracking shows their offset)"
        yield Finding("warning", "clock-skew", text, fix)


def of_versions(owners: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    versions = Counter(owner["version"] or "of unknown version" for owner in owners)
    if {*versions} - {__version__}:
        releases = ", ".join(f"{name} ({count})" for name, count in sorted(versions.items()))
        text = f"workers run celery_superfetch {releases}; this command runs {__version__}"
        fix = "they are compatible; finish the rollout when convenient"
        yield Finding("note", "versions", text, fix)


def _orphans(inspector: Inspector) -> Iterator[Finding]:
    try:
        orphans = inspector.orphans()
    except NoPermissionError:
        return
    if orphans:
        workers = "a worker" if len(orphans) == 1 else f"{len(orphans)} workers"
        keys = [
            _described(*inspector.unregistered(owner)) for owner in sorted(orphans)[:NAMES_LISTED]
        ]
        others = f" and {len(orphans) - NAMES_LISTED} more" if len(orphans) > NAMES_LISTED else ""
        text = (
            f"Redis has jobs of {workers} whose record was deleted or evicted: "
            f"{', '.join(keys)}{others}"
        )
        wait = watch_time(inspector.database.config.owner_ttl)
        fix = (
            f"do not delete these keys, which would lose the jobs; `{command()} reap --full "
            f"--wait {wait:.0f}` recovers them, unless a process still works on them"
        )
        yield Finding("warning", "orphans", text, fix)


def _described(key: str, jobs: int, age: float | None) -> str:
    since = f", the oldest claimed {span(age)} ago" if age is not None else ""
    return f"{key} ({number(jobs, 'job')}{since})"


def _strays(inspector: Inspector, rows: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield a finding for queues with jobs that are not among the ``rows``."""
    try:
        strays = inspector.strays(row["queue"] for row in rows)
    except NoPermissionError:
        return
    if strays:
        queues = some(f"{queue} ({_of_stray(stray)})" for queue, stray in strays.items())
        text = f"jobs wait on queues that no worker with install() has consumed: {queues}"
        fix = (
            "check whether a sender misspells the name, or start a worker with -Q and that name. "
            "If stock workers consume the queue, no action is needed"
        )
        # Stock workers may serve these queues: Redis does not say which queues they consume.
        level: Level = "note" if inspector.unacked.consumers() else "warning"
        yield Finding(level, "unknown-queue", text, fix)


def _of_stray(stray: Stray) -> str:
    """Return the number of jobs on a stray queue, and their least age, as text."""
    jobs = number(stray.jobs, "job")
    if not stray.idle_s:
        return jobs
    return f"{jobs},{' each' if stray.jobs > 1 else ''} at least {span(stray.idle_s)} old"


def _tasks(app: Celery, inspector: Inspector, overview: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for jobs of tasks that the app does not know. It reads both ends of each list
    of the app and its workers, and the parked jobs that are due next."""
    queues, registry = inspector.queues, app.tasks
    owners = [owner for owner in overview["owners"] if owner["app"] == (app.main or "")]
    known_lists = {name for owner in owners for name in owner["queues"]}
    rows = [
        row
        for row in overview["queues"]
        if (row["length"] or row["parked"])
        and (row["queue"] in app.amqp.queues or row["list"] in known_lists)
    ]
    unknown: dict[str, Counter[str]] = {}
    size = 0
    fullest = sorted(rows, key=lambda row: (row["length"] or 0) + row["parked"], reverse=True)
    for row in fullest[:LISTS_READ]:
        payloads = queues.ends(row["list"], END_MESSAGES) if row["length"] else []
        if row["parked"]:
            payloads = [*payloads, *inspector.parked.first(row["list"], END_MESSAGES)]
        for payload in payloads:
            size += len(payload)
            task = parse(payload).task
            if task is not None and task not in registry:
                unknown.setdefault(row["queue"], Counter())[task] += 1
        if size > LISTS_READ_BYTES:
            break
    discarded = inspector.database.config.unknown_tasks == "discard"
    fate = "discard them" if discarded else "move them to the dead set after some tries"
    for queue, tasks in unknown.items():
        jobs = number(tasks.total(), "job")
        text = (
            f"queue {queue}: {jobs} of tasks that app {app.main or '(no name)'} does not have, "
            f"whose workers {fate}: {some(tasks)}"
        )
        fix = (
            "deploy workers before producers, import the module (`include`), or give the other "
            "app its own queue"
        )
        yield Finding("warning", "unknown-task", text, fix)


def of_settings(app: Celery) -> list[Finding]:
    return [*_install(app), *_task_options(app), *_options(app)]


def _install(app: Celery) -> Iterator[Finding]:
    entries = map(dict, (app.conf.beat_schedule or {}).values())  # a ScheduleEntry has pairs, too
    if getattr(app, "_superfetch", None) is None:
        text = (
            "the app uses the transport without install(): it acks early, dead workers' jobs are "
            "not recovered by it, and a job that kills its worker is never stopped"
        )
        yield Finding("warning", "not-installed", text, "call celery_superfetch.install(app)")
    elif not any(entry.get("task") == REAP_TASK for entry in entries):
        text = (
            f"beat_schedule has no {REAP_ENTRY}: it was removed, or the schedule was replaced "
            "after install(). Beat triggers no reap passes"
        )
        fix = (
            f"add to beat_schedule instead of replacing it; or add the task {REAP_TASK!r} yourself"
        )
        yield Finding("warning", "no-beat-entry", text, fix)


def _task_options(app: Celery) -> Iterator[Finding]:
    tasks_of_app = [
        task for task in app.tasks.values() if not task.name.startswith(INTERNAL_TASK_PREFIXES)
    ]
    early = [task for task in tasks_of_app if not task.acks_late]
    outdated = [task for task in early if app.conf.task_acks_late and has_copied_early_ack(task)]
    if outdated:
        clause = (
            "that were used before the settings were read: their jobs are acked before they run"
        )
        text = _named(outdated, f"{clause}, and a killed worker loses those that it runs")
        fix = f"read the settings and {FIRST}; or set acks_late=True on the tasks"
        yield Finding("warning", "outdated-task", text, fix)
    if chosen := [task for task in early if task not in outdated]:
        text = _named(chosen, "with acks_late=False, whose running jobs a killed worker loses")
        fix = (
            "leave acks_late at install()'s default, unless a second run would do more harm than a "
            "lost job"
        )
        yield Finding("warning", "early-ack", text, fix)
    dropped = [task for task in tasks_of_app if task.acks_late and not task.reject_on_worker_lost]
    if dropped:
        clause = "whose jobs Celery drops when their pool process dies"
        text = _named(dropped, f"with task_reject_on_worker_lost off, {clause}")
        fix = "leave it at install()'s default: such a job is then recovered, and gets a strike"
        yield Finding("warning", "reject-off", text, fix)
    silent = [t for t in tasks_of_app if t.ignore_result and not t.store_errors_even_if_ignored]
    if not app.conf.result_backend or str(app.conf.result_backend).startswith("disabled"):
        text = (
            "there is no result_backend: callers are not informed of jobs moved to the dead "
            "set, and cannot wait for results"
        )
        fix = "set one if callers use get() or chords; otherwise look at the dead set"
        yield Finding("note", "no-results", text, fix)
    elif silent:
        text = _named(
            silent,
            "with ignore_result, whose callers are not informed of jobs moved to the dead set",
        )
        fix = "set store_errors_even_if_ignored on those whose callers wait for them"
        yield Finding("note", "ignored-results", text, fix)


def _named(tasks: Sequence[Any], clause: str) -> str:
    return f"{number(len(tasks), 'task')} {clause}: {some(task.name for task in tasks)}"


def _options(app: Celery) -> Iterator[Finding]:
    conf = app.conf
    if "visibility_timeout" in (conf.broker_transport_options or {}):
        text = "visibility_timeout has no effect here: jobs are not redelivered after a timeout"
        fix = "remove it from broker_transport_options once no stock worker is left"
        yield Finding("note", "visibility-timeout", text, fix)
    if conf.worker_prefetch_multiplier == 0 and not conf.get("worker_disable_prefetch"):
        text = (
            "worker_prefetch_multiplier is 0: one worker claims all waiting jobs, and idle "
            "workers find none"
        )
        fix = "set it to 1 for long jobs, or to 4 (Celery's default) for short ones"
        yield Finding("warning", "prefetch-unbounded", text, fix)
