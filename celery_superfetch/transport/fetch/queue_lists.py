"""The queue lists of a channel, and the order in which its next claim looks at them.

kombu keeps a queue as several lists, one for each priority. The channel calls ``serve`` when what
is consumed has changed, the fetch loop reads the order for each claim, both in the thread of the
consumer's loop. Only this process knows the order; after its death other workers have theirs.
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
        self.names: list[str] = []  # those for the urgent first
        self.expires: dict[str, int] = {}  # of each list (ms); 0 for none
        #: The lists of jobs that were sent without a priority: one for each queue.
        self.unprioritised: frozenset[str] = frozenset()

    def serve(self, queues: Mapping[str, list[str]], expires_of: Callable[[str], int]) -> None:
        """Set the queues to claim from: queue -> its lists, that for the urgent first."""
        self._cycle.update(queues)
        self._of_queue = queues
        self.names = list(self._urgent_first(queues))
        self._queue_of = {name: queue for queue, names in queues.items() for name in names}
        self.unprioritised = frozenset(names[0] for names in queues.values())
        self.expires = {name: expires_of(self._queue_of[name]) for name in self.names}

    def queue(self, queue_list: str) -> str:
        """Return the queue of a queue list. A list that is not consumed here counts as a queue of
        the same name."""
        return self._queue_of.get(queue_list, queue_list)

    @property
    def fairness_width(self) -> int:
        """The number of neighbours in ``order`` from which a claim takes jobs in rotation, one of
        each. By kombu's default (``round_robin``) these are all queues; it is 1 for strategies that
        put the queues in an order of urgency: each list is emptied before the next."""
        return len(self._of_queue) if type(self._cycle) is round_robin_cycle else 1

    def order(self) -> list[str]:
        """Return all lists in the order of claiming: the urgent ones of each queue first."""
        return list(self._urgent_first(self._cycle.consume(len(self._of_queue))))

    def _urgent_first(self, queues: Iterable[str]) -> Iterator[str]:
        for step in range(len(next(iter(self._of_queue.values()), ()))):
            for queue in queues:
                yield self._of_queue[queue][step]

    def served(self, queue_list: str) -> None:
        """Note that a claim took a job of a list: the next claim begins with another queue."""
        self._cycle.rotate(self._queue_of[queue_list])
