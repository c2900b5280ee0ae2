"""Who a fetch works for, as the fetch knows it."""

from __future__ import annotations

from typing import Any, Protocol

from ...model.job import Claimed
from .queue_lists import QueueLists


class Consumer(Protocol):
    """Who a fetch works for: a channel."""

    closed: bool
    lists: QueueLists
    #: How much more may be claimed (``credit``), how much was (``in_use``).
    qos: Any

    def list_expires(self) -> dict[str, int]:
        """Each list that is claimed from, with the ms of its queue's x-expires; 0 for none."""

    def expires_of(self, queue_list: str) -> int:
        """The same for any list."""

    def deliver(self, claimed: Claimed) -> bool:
        """Hand a claimed job to whoever consumes from its queue."""

    def give_back_waiting(self) -> int:
        """Give back what is claimed and not started."""
