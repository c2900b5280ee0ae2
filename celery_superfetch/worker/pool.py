"""The slots of a pool of processes: when the next job gets one."""

from __future__ import annotations

from typing import Any

from .prefork import has_loop


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
