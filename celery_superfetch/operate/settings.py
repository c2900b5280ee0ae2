"""What an app's settings give away, and a server is not needed to see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..app.reaping import REAP_ENTRY, REAP_TASK
from .health import Finding
from .words import number

if TYPE_CHECKING:
    from celery import Celery

#: Names of tasks that one finding tells.
NAMED = 8


def of_settings(app: Celery) -> list[Finding]:
    """Findings of an app whose task modules are loaded."""
    return [*_install(app), *_tasks(app), *_options(app)]


def some(names: Iterable[str]) -> str:
    """The first few of some names, and how many there are beside them."""
    known = sorted(names)
    rest = f" and {len(known) - NAMED} more" if len(known) > NAMED else ""
    return ", ".join(known[:NAMED]) + rest


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
            f"beat_schedule has no {REAP_ENTRY}: something replaced it after install(), and beat "
            "looks for no dead workers"
        )
        fix = f"add to beat_schedule, do not replace it; or add the task {REAP_TASK!r} yourself"
        yield Finding("warning", "no-beat-entry", text, fix)


def _tasks(app: Celery) -> Iterator[Finding]:
    own = [task for task in app.tasks.values() if not task.name.startswith(("celery.", REAP_TASK))]
    early = [task for task in own if not task.acks_late]
    if early:
        text = _told(early, "with acks_late=False, which a killed worker loses once they run")
        fix = "leave acks_late at install()'s default, unless a second run would do more harm"
        yield Finding("warning", "early-ack", text, fix)
    dropped = [
        task
        for task in own
        if task.acks_late
        and not task.reject_on_worker_lost
        and not getattr(task, "retry_on_worker_lost", None)  # came with Celery 5.7
    ]
    if dropped:
        what = "which Celery drops when their pool process is lost"
        text = _told(dropped, f"with task_reject_on_worker_lost off, {what}")
        fix = "leave it at install()'s default: such a job is recovered, and counted"
        yield Finding("warning", "reject-off", text, fix)
    silent = [t for t in own if t.ignore_result and not t.store_errors_even_if_ignored]
    if not app.conf.result_backend or str(app.conf.result_backend).startswith("disabled"):
        text = "there is no result_backend: no caller is told of a killed job, and none can wait"
        fix = "set one if anybody calls get(), or uses chords; else the dead set has what was "
        yield Finding("note", "no-results", text, f"{fix}killed")
    elif silent:
        text = _told(silent, "with ignore_result, of whose killed jobs no caller is told")
        fix = "where somebody waits for one, set store_errors_even_if_ignored on it"
        yield Finding("note", "ignored-results", text, fix)


def _told(tasks: Sequence[Any], what: str) -> str:
    return f"{number(len(tasks), 'task')} {what}: {some(task.name for task in tasks)}"


def _options(app: Celery) -> Iterator[Finding]:
    conf = app.conf
    if "visibility_timeout" in (conf.broker_transport_options or {}):
        text = "visibility_timeout does nothing here: no job comes back by a timeout"
        fix = "remove it from broker_transport_options when no stock worker is left"
        yield Finding("note", "visibility-timeout", text, fix)
    multiplier, alone = conf.worker_prefetch_multiplier, conf.get("worker_disable_prefetch")
    if multiplier == 0 and not alone:
        text = (
            "worker_prefetch_multiplier is 0: one worker claims all that waits, and others that "
            "are free find nothing"
        )
        fix = "set it to 1 for long jobs, or to 4 (Celery's default) for short ones"
        yield Finding("warning", "prefetch-unbounded", text, fix)
    elif multiplier > 1 and alone:
        text = (
            f"worker_prefetch_multiplier ({multiplier}) does nothing beside worker_disable_prefetch"
        )
        yield Finding("note", "prefetch-unused", text, "keep one of the two")
