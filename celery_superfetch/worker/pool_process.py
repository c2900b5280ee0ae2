"""The loop of a pool process (prefork): it starts no job after the job's deadline, and tells the
worker before it stops reading jobs.

Before the deadline of a job, no other worker can have declared this one dead and recovered the job;
after it, the job might run twice.

``worker.bootsteps`` puts this class into the pool before the pool starts, billiard runs it in each
pool process, and ``worker.pool_slots`` receives its messages, in the worker. If the pool process
dies, the worker finds its exit, also between ``LEAVING`` and the last result: it recovers a job
that had started, with a strike, and starts a job that had not in another process. If the worker
dies, a reaper recovers its jobs; a pool process that outlives the worker starts none after its
deadline.

Undocumented names that this file uses, by purpose (docs/contribute/architecture.md, Ports):

Foreign names:

celery concurrency.
    report which process leaves: asynpool:Worker.wait_for_job
        asynpool:Worker._ensure_messages_consumed(completed=) asynpool:Worker.prepare_result(result)
        asynpool:Worker.outq asynpool:Worker.maxtasks asynpool:Worker.max_memory_per_child
        asynpool:AsynPool.Worker prefork:TaskPool.Pool
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from billiard.compat import mem_rss
from celery.concurrency import asynpool

from ..model.start_permit import clock
from .outcomes import run_and_pack
from .run_job import run_job

#: Messages of a pool process to its worker, besides those of billiard.
LEAVING = "superfetch-leaving"  # (pid,): the process reads no more jobs
NOT_STARTED = "superfetch-not-started"  # (pid, billiard's number of the job): it came too late


class PoolProcess(asynpool.Worker):
    """Celery's loop of a pool process, which sends two more messages to the worker.

    It sends ``LEAVING`` before the result of its last job, so that the worker writes no other job
    to it. If the worker learned that later, the next job would wait in the pipe of a process that
    ends, until the job's deadline has passed.

    It never sends ``LEAVING`` after it has received a job and before it has accepted it. The worker
    withdraws the jobs that a leaving process has not accepted, so such a job would run twice.

    It sends ``NOT_STARTED`` for a job that it receives after the job's deadline, and drops the job;
    the worker starts it again. If billiard's loop got the message, it would count a run, and a
    process with ``max_tasks_per_child`` of 1 would end without having run a job.
    """

    _received = 0  # number of jobs that came in time
    _is_leaving = False
    _receive: Callable[[], Any]

    @property
    def wait_for_job(self) -> Callable[[], Any]:
        """The function by which billiard's loop reads the next job; it drops a late one."""
        return self._only_in_time(self._receive)

    @wait_for_job.setter
    def wait_for_job(self, receive: Callable[[], Any]) -> None:
        """Store billiard's own function, which billiard sets in the new process."""
        self._receive = receive

    def _only_in_time(self, receive: Callable[[], Any]) -> Callable[[], Any]:
        """Wrap the function by which billiard reads the next job; None makes billiard read
        again."""
        pid = os.getpid()

        def receive_in_time() -> Any:
            message = receive()
            if not message:
                return message
            _, (number, _, target, args, _) = message
            # ``run_and_pack(run_job, deadline, ...)``, as ``ProcessAdapter.call`` has it.
            is_ours = target is run_and_pack and args[0] is run_job
            if is_ours and args[1] <= clock():
                self.outq.put((NOT_STARTED, (pid, number)))
                return None
            self._received += 1
            return message

        return receive_in_time

    def prepare_result(self, result: Any) -> Any:
        # billiard checks both limits after it has sent the result, and then ends the process.
        # ``mem_rss`` is the maximum so far: if that is over the limit now, it will be then.
        limit = self.max_memory_per_child
        if self._received == self.maxtasks or (limit and mem_rss() > limit):
            self._say_leaving()
        return super().prepare_result(result)

    def _ensure_messages_consumed(self, *args: Any, **options: Any) -> Any:
        """Send ``LEAVING`` first: billiard calls this method when the loop has ended, for any
        reason."""
        self._say_leaving()
        return super()._ensure_messages_consumed(*args, **options)

    def _say_leaving(self) -> None:
        if not self._is_leaving:
            self._is_leaving = True
            self.outq.put((LEAVING, (os.getpid(),)))


def report_from_processes(pool: Any) -> None:
    """Make a pool that has not started use ``PoolProcess`` as the loop of its processes. If the
    user has replaced that loop, the pool is left as it is."""
    processes: Any = getattr(pool, "Pool", None)
    if getattr(processes, "Worker", None) is asynpool.Worker:
        pool.Pool = type(processes.__name__, (processes,), {"Worker": PoolProcess})
