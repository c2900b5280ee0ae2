"""The loop of a pool process (prefork): it starts no job after the job's deadline (until then no
peer can have declared the worker dead), and reports to the worker when it reads no more jobs.

``worker.steps`` puts it into the pool before the pool starts, and ``worker.pool_slots`` receives
the reports, in the worker. If the process dies, the worker finds that by its exit: a job that had
started is recovered with a strike, one that had not is started in another process.

Foreign names:

celery concurrency.
    report which process leaves: asynpool:Worker._make_child_methods() asynpool:Worker.wait_for_job
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

from ..model.permit import clock
from .outcomes import run_and_pack
from .run_job import run_job

#: Messages of a pool process to its worker, besides those of billiard.
LEAVING = "superfetch-leaving"  # (pid,): it reads no more jobs
NOT_STARTED = "superfetch-not-started"  # (pid, number of the pool's job): it came too late


class PoolProcess(asynpool.Worker):
    """Celery's loop of a pool process, which sends two more messages to the worker.

    It sends ``LEAVING`` before the result of its last job, so that the worker writes no other job
    to it: if the worker learned that later, the next job would wait in the pipe of a process that
    ends, until its deadline has passed. It never sends ``LEAVING`` between the receipt of a job and
    its acceptance: the worker withdraws what a leaving process has not accepted, and the job would
    run twice.

    It sends ``NOT_STARTED`` for a job that it receives after the job's deadline, and drops the job;
    the worker starts it again. If billiard got the job, it would count a run, and a process with
    ``max_tasks_per_child`` of 1 would end without having run a job.
    """

    _received = 0  # jobs, but for those that came too late
    _is_leaving = False

    def _make_child_methods(self, *args: Any, **options: Any) -> None:
        super()._make_child_methods(*args, **options)
        receive = self.wait_for_job
        self.wait_for_job: Callable[[], Any] = self._only_in_time(receive)

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
        # billiard checks both limits after it has sent the result. ``mem_rss`` is the maximum so
        # far: if it is over the limit now, it is so then.
        limit = self.max_memory_per_child
        if self._received == self.maxtasks or (limit and mem_rss() > limit):
            self._say_leaving()
        return super().prepare_result(result)

    def _ensure_messages_consumed(self, *args: Any, **options: Any) -> Any:
        """Report first: billiard calls this once the loop has ended, for whatever reason."""
        self._say_leaving()
        return super()._ensure_messages_consumed(*args, **options)

    def _say_leaving(self) -> None:
        if not self._is_leaving:
            self._is_leaving = True
            self.outq.put((LEAVING, (os.getpid(),)))


def report_from_processes(pool: Any) -> None:
    """Make a pool that has not started run ``PoolProcess`` in its processes. A pool whose processes
    run a loop of the user's own is left as it is."""
    processes: Any = getattr(pool, "Pool", None)
    if getattr(processes, "Worker", None) is asynpool.Worker:
        pool.Pool = type(processes.__name__, (processes,), {"Worker": PoolProcess})
