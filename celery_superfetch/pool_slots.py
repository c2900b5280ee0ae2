"""The slots of a pool: which are free, and when the next job gets one."""

from __future__ import annotations

from typing import Any

from celery.worker import state

from .pool_flush import has_loop


class Slots:
    """How many jobs a worker's pool may start at once."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool

    def _all(self) -> int:
        # gevent's, on Celery 5.5, counts the greenlets that run.
        return int(self.pool.num_processes if self.pool.uses_semaphore else self.pool.limit)

    def free(self) -> int:
        """How many are free, of those for which no job that Celery knows waits."""
        return self._all() - len(state.reserved_requests)

    def next_has_one(self) -> bool:
        """Whether the job that the pool is about to get runs at once.

        Celery counts it already; a pool of processes gets no more than it has slots, unless a lost
        connection has made Celery forget what runs.
        """
        if has_loop(self.pool):
            return len(self.pool._pool._cache) < self._all()
        return self.free() >= 0


def ack_first(pool: Any) -> None:
    """Let ``pool`` tell of a job's end before it gives the slot to the next.

    It frees the slot first. The next job, which takes the ack along when it is recorded as running,
    would leave without it, and each job would cost one send more. Whatever else frees a slot frees
    it at once.
    """
    if not has_loop(pool):
        return
    results, slots = pool._pool._result_handler, pool._pool._putlock
    tell, release = results.on_state_change, slots.release
    telling, freed = False, 0

    def tell_first(state: Any) -> None:
        nonlocal telling, freed
        telling = True
        try:
            tell(state)
        finally:
            telling, count, freed = False, freed, 0
            for _ in range(count):
                release()

    def release_later() -> None:
        nonlocal freed
        if telling:
            freed += 1
        else:
            release()

    results.on_state_change, slots.release = tell_first, release_later
