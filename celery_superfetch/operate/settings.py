"""What an app's settings give away, and a server is not needed to see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    tasks = {
        name: task
        for name, task in sorted(app.tasks.items())
        if not name.startswith("celery.") and name != REAP_TASK
    }
    return [*_install(app), *_acks(tasks), *_results(app, tasks), *_options(app)]


def some(names: Iterable[str]) -> str:
    """The first few of some names, and how many there are beside them."""
    known = sorted(names)
    rest = f" and {len(known) - NAMED} more" if len(known) > NAMED else ""
    return ", ".join(known[:NAMED]) + rest


def _install(app: Celery) -> Iterator[Finding]:
    if getattr(app, "_superfetch", None) is None:
        text = (
            "the app names the transport and nothing else: it acks early, nobody reaps, and no "
            "job that kills its worker is ever stopped"
        )
        yield Finding("warning", "not-installed", text, "call celery_superfetch.install(app)")
        return
    entries = map(dict, (app.conf.beat_schedule or {}).values())  # a ScheduleEntry has pairs, too
    if not any(entry.get("task") == REAP_TASK for entry in entries):
        text = (
            f"beat_schedule has no {REAP_ENTRY}: something replaced it after install(), and beat "
            "looks for no dead workers"
        )
        fix = f"add to beat_schedule, do not replace it; or add the task {REAP_TASK!r} yourself"
        yield Finding("warning", "no-beat-entry", text, fix)


def _acks(tasks: dict[str, Any]) -> Iterator[Finding]:
    early = [name for name, task in tasks.items() if not task.acks_late]
    if early:
        text = (
            f"{number(len(early), 'task')} with acks_late=False, which a killed worker loses once "
            f"they run: {some(early)}"
        )
        fix = "leave acks_late at install()'s default, unless a second run would do more harm"
        yield Finding("warning", "early-ack", text, fix)
    dropped = [
        name
        for name, task in tasks.items()
        if task.acks_late
        and not task.reject_on_worker_lost
        and not getattr(task, "retry_on_worker_lost", None)  # came with Celery 5.7
    ]
    if dropped:
        text = (
            f"{number(len(dropped), 'task')} with task_reject_on_worker_lost off, which Celery "
            f"drops when their pool process is lost: {some(dropped)}"
        )
        fix = "leave it at install()'s default: such a job is recovered, and counted"
        yield Finding("warning", "reject-off", text, fix)


def _results(app: Celery, tasks: dict[str, Any]) -> Iterator[Finding]:
    if not app.conf.result_backend or str(app.conf.result_backend).startswith("disabled"):
        text = "there is no result_backend: no caller is told of a killed job, and none can wait"
        fix = "set one if anybody calls get(), or uses chords; else the dead set has what was "
        yield Finding("note", "no-results", text, f"{fix}killed")
        return
    silent = [
        name
        for name, task in tasks.items()
        if task.ignore_result and not task.store_errors_even_if_ignored
    ]
    if silent:
        text = (
            f"{number(len(silent), 'task')} with ignore_result, of whose killed jobs no caller is "
            f"told: {some(silent)}"
        )
        fix = "where somebody waits for one, set store_errors_even_if_ignored on it"
        yield Finding("note", "ignored-results", text, fix)


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
