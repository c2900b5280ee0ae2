"""Finds tasks whose jobs are lost with their process although the settings promise otherwise.

A task copies the settings when it is first used. A task that is used before they are read (by a
library, or an import order) keeps Celery's defaults: its jobs are acked before they run, and are
lost with their pool process. The settings do not show that. The worker logs such tasks when it has
started; `install()` and `superfetch doctor` ask the same of single tasks.

Foreign names:

celery app.
    know who chose that a task acks early: task:Task.bind~__bound__
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from .config import NOT_THE_USERS

#: Most names of tasks in one message.
NAMES_IN_LOG = 20

#: The attribute that ``Task.bind`` sets on the class of a task before it copies the settings.
BOUND = "__bound__"

FIRST = "call install(app) before a task is used"


class EarlyTasks(NamedTuple):
    """Names of tasks whose jobs a killed process may lose, by the reason."""

    outdated: list[str]  # ack early, since they have not copied the settings as they are
    chosen: list[str]  # ack early by the choice of their author
    dropped: list[str]  # ack late, but have not copied task_reject_on_worker_lost

    def messages(self) -> Iterator[tuple[bool, str]]:
        """Yield (whether it is a warning, text) for each reason that some task has."""
        if self.outdated:
            yield (
                True,
                "Jobs of these tasks are acked before they run although task_acks_late is on: "
                f"{listed(self.outdated)}. The tasks were used before the settings were read and "
                "kept Celery's defaults, so a killed worker loses the jobs of theirs that it runs. "
                f"Read the settings and {FIRST}, or set acks_late=True on the tasks.",
            )
        if self.dropped:
            yield (
                True,
                "Jobs of these tasks fail when their pool process is lost although "
                f"task_reject_on_worker_lost is on: {listed(self.dropped)}. The tasks were used "
                f"before the settings were read and kept Celery's defaults. Read the settings and "
                f"{FIRST}, or set reject_on_worker_lost=True on the tasks.",
            )
        if self.chosen:
            yield (
                False,
                f"Jobs of these tasks are acked before they run, by their own acks_late=False: "
                f"{listed(self.chosen)}. A killed worker loses those that it runs.",
            )


def early_tasks(app: Any) -> EarlyTasks:
    """Examine every task that is registered with ``app``, except Celery's and this package's own.
    Raises what a property of a task raises."""
    early = EarlyTasks([], [], [])
    conf = app.conf
    for name, task in sorted(app.tasks.items()):
        if name.startswith(NOT_THE_USERS):
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
    # Attributes of a class are in the order in which they were set. ``bind`` marks the class, and
    # then sets what neither the class nor a base has.
    names = [*vars(type(task))]
    if task.acks_late or "acks_late" in vars(task) or not {"acks_late", BOUND} <= {*names}:
        return False
    return names.index("acks_late") > names.index(BOUND)


def listed(names: list[str]) -> str:
    """Return names as text for a log, ``NAMES_IN_LOG`` at most and the number of the others."""
    more = len(names) - NAMES_IN_LOG
    return ", ".join(names[:NAMES_IN_LOG]) + (f" and {more} more" if more > 0 else "")
