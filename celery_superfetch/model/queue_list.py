"""The names of queue lists. kombu keeps a queue as several Redis lists, one for each *priority
step*: the list of step 0 has the queue's name, and those of the other steps have a separator and
the step after it (``celery``, ``celery\\x06\\x163``). The app's options ``sep`` and
``priority_steps`` say how.

Every module that needs the queue or the priority of a list uses ``ListNames``, by
``Database.list_names`` or ``app/queues.py``; kombu's channel makes one of its own, by its own
options. ``claim.lua`` splits names by the same rule on the server: change both together. Nothing is
read or stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .lazy import lazy_property


@dataclass(frozen=True)
class ListNames:
    """The scheme by which an app's queue lists are named."""

    separator: str
    steps: Sequence[int]  # kombu's ``priority_steps``

    def of(self, queue: str, step: int) -> str:
        """Return the list of a queue for one of the steps."""
        return f"{queue}{self.separator}{step}" if step else queue

    def split(self, queue_list: str) -> tuple[str, int]:
        """Return the queue and the priority step of a queue list. A name that does not end with the
        separator and one of the steps is that of a queue: the separator may be a part of it, such
        as the colon of ``emails:high``."""
        queue, _, step = queue_list.rpartition(self.separator)
        number = self._step_by_text.get(step, 0) if queue else 0
        return (queue, number) if number else (queue_list, 0)

    def queue(self, queue_list: str) -> str:
        """Return the queue of a queue list."""
        return self.split(queue_list)[0]

    @lazy_property
    def _step_by_text(self) -> dict[str, int]:
        return {str(step): step for step in self.steps}
