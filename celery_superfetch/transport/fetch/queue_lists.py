"""The queue lists of a channel, and the order in which its next claim looks at them.

kombu keeps a queue as several lists, one for each priority. The channel calls ``set_queues`` when
the consumed queues have changed. The fetch loop reads the order for each claim, and calls
``note_claimed`` after it. All of this is in the thread of the consumer's loop. The order is in
memory alone; if the process dies, other workers continue in their own orders.

A channel claims nothing from the lists of a *paused* queue. The other lists are *open*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from kombu.utils.scheduling import cycle_by_name, round_robin_cycle

POLL_INTERVAL = 1.0  # seconds between two claims from empty queues that cannot be waited on


class QueueLists:
    """The lists that one channel claims from, in the order of kombu's ``queue_order_strategy``."""

    def __init__(self, order: str) -> None:
        self._cycle = cycle_by_name(order)()
        self._of_queue: Mapping[str, list[str]] = {}
        self._queue_of: dict[str, str] = {}
        self.names: list[str] = []  # the lists for the most urgent jobs first
        self.open_names: list[str] = []  # of ``names`` those whose queue is not paused
        self.paused: frozenset[str] = frozenset()  # paused queues, as of the last ``set_paused``
        self.expires: dict[str, int] = {}  # list -> ms of the x-expires of its queue; 0: none
        #: One list for each queue: that of jobs which were sent without a priority. With kombu's
        #: Redis transport these have priority 0, and that is the most urgent one.
        self.unprioritised: frozenset[str] = frozenset()

    def set_queues(self, queues: Mapping[str, list[str]], expires_of: Callable[[str], int]) -> None:
        """Set the queues to claim from.

        Arguments:
            queues: queue -> its lists, the one for the most urgent jobs first.
            expires_of: returns the x-expires of a queue (ms).
        """
        self._cycle.update(queues)
        self._of_queue = queues
        self.names = list(self._urgent_first(queues))
        self._queue_of = {name: queue for queue, names in queues.items() for name in names}
        self.unprioritised = frozenset(names[0] for names in queues.values())
        self.expires = {name: expires_of(self._queue_of[name]) for name in self.names}
        self.set_paused(self.paused)

    def set_paused(self, queues: frozenset[str]) -> None:
        """Set which queues are paused; names of other queues may be among them."""
        self.paused = queues
        self.open_names = [name for name in self.names if self.is_open(name)]

    def is_open(self, queue_list: str) -> bool:
        """Return whether the channel consumes a queue list, and its queue is not paused."""
        queue = self._queue_of.get(queue_list)
        return queue is not None and queue not in self.paused

    def queue(self, queue_list: str) -> str:
        """Return the queue of a queue list. A list that is not consumed here counts as a queue of
        the same name."""
        return self._queue_of.get(queue_list, queue_list)

    @property
    def fairness_width(self) -> int:
        """The number of neighbouring lists of ``order`` from which a claim takes jobs in rotation,
        one job from each. With kombu's default (``round_robin``) it is the number of open queues,
        so that no queue has to wait for another one to be empty. With a strategy that orders the
        queues by urgency it is 1: each list is emptied before the next."""
        is_fair = type(self._cycle) is round_robin_cycle
        return len(self._of_queue.keys() - self.paused) if is_fair else 1

    def order(self) -> list[str]:
        """Return the open lists in the order of claiming: first the most urgent list of each
        queue."""
        queues = self._cycle.consume(len(self._of_queue))
        return list(self._urgent_first([queue for queue in queues if queue not in self.paused]))

    def _urgent_first(self, queues: Iterable[str]) -> Iterator[str]:
        for step in range(len(next(iter(self._of_queue.values()), ()))):
            for queue in queues:
                yield self._of_queue[queue][step]

    def note_claimed(self, queue_list: str) -> None:
        """Rotate the order after a claim of a job from a list: the next claim begins with another
        queue."""
        self._cycle.rotate(self._queue_of[queue_list])
