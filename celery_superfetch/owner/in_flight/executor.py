"""The interface to the code that runs the jobs of a process: ``Executor``.

A Celery worker's executor is its ``Gate`` (``worker/gate.py``), in front of the pool. A consumer
without a pool (plain kombu) has ``NO_POOL``, whose answers are the defaults of the class. The
owner's heartbeat thread calls ``pids`` and ``tick_count``. The transport (``fetch/``, the poller)
and the worker's other modules call the rest, in the thread of the consumer's loop unless a method
says otherwise.

An executor is in memory alone. If the process dies, its jobs are in the owner's *private list* (the
jobs that it has claimed, in Redis), and the *reaper* of a peer recovers them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Executor:
    """The executor of the jobs of one process. The defaults are those of a consumer without a pool:
    it runs a job whenever it likes after the delivery, and does not report when.

    ``Gate`` sets the attributes when it is made, except the two that change later: ``ends_jobs``
    and ``failure``.
    """

    #: Celery's ``WorkController``; None: the process is no Celery worker.
    worker: Any = None
    #: Celery's name of the worker (``celery@host``), for owner records and job histories.
    node: str = ""
    #: The kind of the worker's pool, as Celery's option ``--pool`` names it; for owner records.
    pool_name: str = ""
    #: A digest of the names of the worker's tasks. Two workers with the same one have the same
    #: tasks, so neither can run a job whose task the other does not know.
    tasks: str = ""
    #: Each job runs in a process of its own (the prefork pool).
    prefork: bool = False
    #: Each job runs in the thread that delivers it, and blocks it (Celery's solo pool).
    inline: bool = False
    #: The consumer's loop runs until the worker ends, and another thread can wake it; a maintenance
    #: thread makes the owner's deferred calls. False: the loop runs only while the consumer calls
    #: it, and the fetch loop makes the deferred calls.
    endless: bool = False
    #: Makes the failure notification of a dead-lettered job: the message of a job that informs the
    #: dead one's caller. The argument is the queue list that gets the message. None: no caller is
    #: informed.
    notice: Callable[[str], bytes] | None = None
    #: The worker's ``RunCounts``, which the maintenance thread adds to the counts on the server.
    #: None: runs are not counted.
    run_counts: Any = None
    #: A cold shutdown of a prefork worker has begun: the processes of its running jobs are killed,
    #: and the jobs requeued. ``worker/stopping.py`` sets it.
    ends_jobs: bool = False
    #: The error by which the worker is to end; ``on_tick`` raises it in the event loop. The gate
    #: and ``worker/unreadable_jobs.py`` set it where an error would not reach the loop by itself.
    failure: BaseException | None = None

    @property
    def slots(self) -> int:
        """The number of jobs that can run at once; 0: there is no pool. The heartbeat thread reads
        it, for the owner record."""
        return 0

    def is_registered(self, task: str) -> bool:
        """Return whether the app has a task of this name. Any thread may call it."""
        return False

    def pids(self) -> Sequence[tuple[int, str]]:
        """Return (pid, start time) of each pool process, for the owner record. The heartbeat thread
        calls it."""
        return ()

    def not_before(self, task: str, owner: Any) -> float:
        """Return when a delivered job of this task may run at the earliest (s since the epoch; 0:
        now). ``owner`` is the ``Owner`` that has claimed it."""
        return 0.0

    def busy(self, unsettled: bool) -> bool:
        """Return whether a job runs, or may run.

        Arguments:
            unsettled: whether this process has a job that is not done (a job whose ack was not sent
                yet is done). Without a pool, each such job may be running.
        """
        return unsettled

    def free(self) -> int:
        """Return the number of free slots of the pool. If so many jobs were claimed now, they would
        start at once, so the claim also records their starts. Without a pool the number is 0: a
        claimed job may wait for its delivery, and must not be recorded as running meanwhile."""
        return 0

    def waiting_count(self) -> int:
        """Return how many delivered jobs wait for a slot of the pool. Without a pool the
        number is 0: a delivered job waits for nothing."""
        return 0

    def pump(self) -> None:
        """Start the delivered jobs that may start now. The fetch loop calls it in each tick."""

    def on_tick(self) -> None:
        """Count a tick of the consumer's loop, and raise ``failure`` if it is set. The poller calls
        it in each tick, before the fetch loops."""

    def on_close(self) -> None:
        """Note that the broker connection closes, or was lost: the loop does not tick until the
        next connection. The poller calls it."""

    def tick_count(self) -> int:
        """Return the number of ticks of the consumer's loop; 0: there is no loop whose liveness
        could be checked now. The heartbeat thread calls it, under gevent a native thread, too."""
        return 0


NO_POOL = Executor()  # the executor of every consumer without a pool
