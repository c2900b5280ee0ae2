"""Finds tasks whose running job a killed process loses, although the settings promise otherwise.

A task copies the settings when it is first used. A task that is used before they are read (by a
library, or an import order) keeps Celery's defaults: its jobs are acked before they run, and are
lost with their pool process. The settings do not show that. A worker that has started
(``worker/bootsteps.py``) calls ``early_tasks`` and logs the messages. ``install()`` and `superfetch
doctor` call ``has_copied_early_ack`` for single tasks. All of this only reads the app in memory.

Foreign names:

celery app.
    know who chose that a task acks early: task:Task.bind~__bound__
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from .config import INTERNAL_TASK_PREFIXES

#: Most names of tasks in one message.
NAMES_IN_LOG = 20

#: The attribute that ``Task.bind`` sets on the class of a task before it copies the settings.
BOUND = "__bound__"

FIRST = "call install(app) before a task is used"


class EarlyTasks(NamedTuple):
    """Names of tasks whose jobs a killed process loses or fails, grouped by the reason."""

    outdated: list[str]  # ack early: they copied Celery's defaults, before the settings were read
    chosen: list[str]  # ack early by the choice of their author
    #: Ack late, but have not copied task_reject_on_worker_lost: a job whose pool process is lost
    #: fails.
    dropped: list[str]

    def messages(self) -> Iterator[tuple[bool, str]]:
        """Yield (whether it is a warning, text) for each reason that some task has."""
        if self.outdated:
            yield (
                True,
                "Jobs of these tasks are acked before they run although task_acks_late is on, so "
                f"a killed worker loses the jobs that it runs: {listed(self.outdated)}. The "
                "tasks were used before the settings were read, and kept Celery's defaults. Read "
                f"the settings and {FIRST}, or set acks_late=True on the tasks.",
            )
        if self.dropped:
            yield (
                True,
                "Jobs of these tasks fail when their pool process dies although "
                f"task_reject_on_worker_lost is on: {listed(self.dropped)}. The tasks were used "
                "before the settings were read, and kept Celery's defaults. Read the settings "
                f"and {FIRST}, or set reject_on_worker_lost=True on the tasks.",
            )
        if self.chosen:
            yield (
                False,
                "Jobs of these tasks are acked before they run, by their own acks_late=False, so "
                f"a killed worker loses the jobs that it runs: {listed(self.chosen)}.",
            )


def early_tasks(app: Any) -> EarlyTasks:
    """Examine every task that is registered with ``app``, except Celery's and this package's own.
    Raises whatever a property raises that the author of a task has written."""
    early = EarlyTasks([], [], [])
    conf = app.conf
    for name, task in sorted(app.tasks.items()):
        if name.startswith(INTERNAL_TASK_PREFIXES):
            continue
        if not task.acks_late:
            if conf.task_acks_late:
                (early.outdated if has_copied_early_ack(task) else early.chosen).append(name)
        # Celery's default is None, which no author has to write.
        elif conf.task_reject_on_worker_lost and task.reject_on_worker_lost is None:
            early.dropped.append(name)
    return early


def has_copied_early_ack(task: Any) -> bool:
    """Return whether a task that acks early has copied that from the settings. If not, its author
    chose it: in the decorator, the class or one of its bases."""
    # ``vars`` of a class has the order in which its attributes were set. ``bind`` sets BOUND, and
    # then copies each setting that neither the class nor a base has: so an ``acks_late`` after
    # BOUND is copied, and one before it, or without it, is the author's.
    names = [*vars(type(task))]
    if task.acks_late or "acks_late" in vars(task) or not {"acks_late", BOUND} <= {*names}:
        return False
    return names.index("acks_late") > names.index(BOUND)


def listed(names: list[str]) -> str:
    """Return names as text for a log, ``NAMES_IN_LOG`` at most and the number of the others."""
    hidden_count = len(names) - NAMES_IN_LOG
    return ", ".join(names[:NAMES_IN_LOG]) + (
        f" and {hidden_count} more" if hidden_count > 0 else ""
    )
