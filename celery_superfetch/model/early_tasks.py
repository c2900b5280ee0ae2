"""Finds tasks whose jobs are lost with their process although the settings promise otherwise.

A task copies the settings when it is first used. One that is used before they are read (a library,
an import order) keeps Celery's defaults: it acks a job before it runs, and drops it with its pool
process. The settings do not show that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from .config import NOT_THE_USERS

#: Names of tasks that one message has.
NAMES_IN_LOG = 20

#: The mark on the class of a task that has copied the settings.
BOUND = "__bound__"

FIRST = "call install(app) before a task is used"


class EarlyTasks(NamedTuple):
    """Names of tasks, by what a killed process loses of them, and why."""

    outdated: list[str]  # ack early, since they have not copied the settings as they are
    chosen: list[str]  # ack early by the choice of their author
    dropped: list[str]  # ack late, but have not copied task_reject_on_worker_lost

    def messages(self) -> Iterator[tuple[bool, str]]:
        """Yield whether each message is a warning, and its text."""
        if self.outdated:
            yield (
                True,
                "Jobs of these tasks are acked before they run although task_acks_late is on: "
                f"{_listed(self.outdated)}. The tasks were used before the settings were read and "
                "kept Celery's defaults, so a killed worker loses the jobs of theirs that it runs. "
                f"Read the settings and {FIRST}, or set acks_late=True on the tasks.",
            )
        if self.dropped:
            yield (
                True,
                "Jobs of these tasks fail when their pool process is lost although "
                f"task_reject_on_worker_lost is on: {_listed(self.dropped)}. The tasks were used "
                f"before the settings were read and kept Celery's defaults. Read the settings and "
                f"{FIRST}, or set reject_on_worker_lost=True on the tasks.",
            )
        if self.chosen:
            yield (
                False,
                f"Jobs of these tasks are acked before they run, by their own acks_late=False: "
                f"{_listed(self.chosen)}. A killed worker loses those that it runs.",
            )


def early_tasks(app: Any) -> EarlyTasks:
    """Examine every task that is registered with ``app``, except those of Celery and of ours."""
    early = EarlyTasks([], [], [])
    conf = app.conf
    for name, task in sorted(app.tasks.items()):
        if name.startswith(NOT_THE_USERS):
            continue
        if not task.acks_late:
            if conf.task_acks_late:
                (early.outdated if has_copied_early_ack(task) else early.chosen).append(name)
        # Celery's default is None, which no author has to write; and since Celery 5.7 a task may be
        # retried instead.
        elif (
            conf.task_reject_on_worker_lost
            and task.reject_on_worker_lost is None
            and not getattr(task, "retry_on_worker_lost", None)
        ):
            early.dropped.append(name)
    return early


def has_copied_early_ack(task: Any) -> bool:
    """Return whether a task that acks early has copied that from the settings; else its author said
    so, in the decorator, the class or one of its bases."""
    # Attributes of a class are in the order in which they were set. ``bind`` marks the class, and
    # then sets there what nobody has said.
    names = [*vars(type(task))]
    if task.acks_late or "acks_late" in vars(task) or not {"acks_late", BOUND} <= {*names}:
        return False
    return names.index("acks_late") > names.index(BOUND)


def _listed(names: list[str]) -> str:
    more = len(names) - NAMES_IN_LOG
    return ", ".join(names[:NAMES_IN_LOG]) + (f" and {more} more" if more > 0 else "")
