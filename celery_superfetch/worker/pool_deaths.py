"""What a pool's child has said before it died, and nobody has read yet."""

from __future__ import annotations

from typing import Any

from .prefork import has_loop


def hear_the_dead(pool: Any) -> None:
    """Let ``pool`` read what a dead child has said before its job is given to another.

    Celery reads that of each child that it finds dead. One that dies while it looks at the others
    may have begun its job, or even done it; Celery takes it for unread, and it runs once more
    without a strike.
    """
    if not has_loop(pool):
        return
    processes = pool._pool
    give_away = processes.on_job_process_down

    def read_first(job: Any, pid: int) -> None:
        child = job._write_to
        if not (job._accepted or child is None or child.dead or child._is_alive()):
            processes.process_flush_queues(child)
            if job._accepted:
                return  # the loss of the child is found with its exit
        give_away(job, pid)

    processes.on_job_process_down = read_first
