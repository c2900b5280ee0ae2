"""The names of Celery and billiard that a worker depends on, and how they are looked for."""

from __future__ import annotations

from typing import Any

from ..transport.private_names import Name, check, check_transport

#: The only strategy that is known to hand a request to the pool before it runs. Others (batches)
#: keep messages of their own, and settle those themselves.
ASKS_FIRST = "celery.worker.strategy:default"

#: Where the pools are that only their module tells from others.
SOLO, THREADS = "celery.concurrency.solo", "celery.concurrency.thread"
EVENTLET = "celery.concurrency.eventlet"

_CONSUMER = "worker.consumer.consumer:Consumer."
_EVENTS = "events.dispatcher:EventDispatcher."
_JOB = "pool:ApplyResult."
_POOL = "concurrency.base:BasePool."
_REQUEST = "worker.request:Request."
_RESULTS = "._pool._result_handler."
_THREADS = "concurrency.thread:"
_STATE = "worker.state:"
_WORKER = "worker.worker:WorkController."

#: What any worker needs.
NAMES = (
    Name("celery", _REQUEST + "_already_cancelled", "give back what Celery has cancelled"),
    Name("celery", _REQUEST + "_announce_cancelled()", "end a job of the solo pool"),
    Name("celery", _REQUEST + "_apply_result", "hand jobs over when they may start"),
    Name("celery", _REQUEST + "_context", "send a job anew with its strikes"),
    Name("celery", _REQUEST + "_payload", "refuse a message that would end the worker"),
    Name("celery", _REQUEST + "_retry_worker_lost(exc, exc_info)", "count strikes", (5, 7)),
    Name("celery", _REQUEST + "acknowledge()", "settle a job"),
    Name("celery", _REQUEST + "cancel(pool)", "give back what Celery cancels"),
    Name(
        "celery", _REQUEST + "execute_using_pool(pool)", "know whose job it is", text="on_accepted"
    ),
    Name("celery", _REQUEST + "on_failure(exc_info)", "see that a pool process was lost"),
    Name("celery", _REQUEST + "on_timeout(soft, timeout)", "see that a job was killed"),
    Name("celery", _REQUEST + "reject(requeue=)", "count strikes"),
    Name("celery", _REQUEST + "revoked()", "leave out what was revoked while it waited"),
    Name("celery", _STATE + "active_requests", "know what runs"),
    Name("celery", _STATE + "requests", "take a job out of Celery's books"),
    Name("celery", _STATE + "reserved_requests", "know what waits for a slot"),
    Name("celery", _STATE + "should_stop", "start nothing in a worker that ends"),
    Name("celery", _STATE + "should_terminate", "start nothing in a worker that ends"),
    Name("celery", _STATE + "task_ready(request)", "take a job out of Celery's books"),
    Name("celery", _STATE + "task_reserved(request)", "hand a job over once more"),
    Name("celery", _WORKER + "_process_task(req)", "survive whatever message comes"),
    Name("celery", _WORKER + "wait_for_soft_shutdown()", "let a job of the solo pool end"),
    Name("celery", "worker.components:Pool._quick_release", "free the slot of what did not start"),
    Name("celery", "worker.components:Pool.process_task", "survive whatever message comes"),
    Name("celery", _CONSUMER + "on_task_request", "survive whatever message comes"),
    Name("celery", _CONSUMER + "update_strategies()", "serve tasks by a request class of ours"),
    Name("celery", "worker.consumer.tasks:Tasks.can_consume", "keep to the free slots", (5, 6)),
    Name("celery", "apps.worker:_shutdown_handler", "give jobs back at once", text="worker_"),
    Name("celery", _POOL + "apply_async(target, args, kwargs)", "hand jobs over"),
    Name("celery", _POOL + "is_green", "know a pool of greenlets"),
    Name("celery", _POOL + "options", "know a pool that the loop serves"),
    Name("celery", _POOL + "uses_semaphore", "know a pool of processes"),
    Name("celery", "concurrency.solo:TaskPool.__module__", "know a solo pool", text=SOLO),
    Name("celery", _THREADS + "TaskPool.__module__", "know a pool of threads", text=THREADS),
    Name("celery", _THREADS + "ApplyResult.f", "see that a thread has ended its job"),
    Name("celery", "app.task:Task.Request", "serve tasks by a request class of ours"),
    Name("celery", "app.task:Task.Strategy", "know who asks before it starts", text=ASKS_FIRST),
    Name("celery", "app.task:Task._backend", "announce killed jobs"),
    Name("celery", "app.task:get_actual_ignore_result(task, request)", "fail killed jobs", (5, 7)),
    Name("celery", "app.base:Celery._backend", "announce killed jobs"),
    Name("celery", "app.base:Celery._get_backend()", "announce killed jobs"),
    Name("celery", "backends.base:Backend._call_task_errbacks(r, e, t)", "announce killed jobs"),
    Name("celery", _EVENTS + "buffer_group", "tell monitors of killed jobs"),
    Name("celery", _EVENTS + "groups", "tell monitors of killed jobs"),
    Name("celery", "utils.collections:ConfigurationView._to_keys(key)", "set an app's defaults"),
    Name("kombu", "asynchronous.timer:Timer._queue", "forget what waited at a lost connection"),
    Name("kombu", "connection:Connection._info(resolve=)", "connect from the app's own pool"),
    Name("kombu", "utils.functional:sleep", "let greenlets run while it waits for the broker"),
)

#: What a worker with a pool of processes needs as well.
PREFORK = (
    Name("billiard", _JOB + "_accept_callback", "know whose job it is"),
    Name("billiard", _JOB + "_accepted", "know whether a child has begun with a job"),
    Name("billiard", _JOB + "_time_accepted", "know whether a child has begun with a job"),
    Name("billiard", _JOB + "_write_to", "know which child was given a job"),
    Name("billiard", _JOB + "discard()", "take a job back from the pool"),
    Name("billiard", "process:BaseProcess._is_alive()", "hear what a dead child has said"),
    Name("celery", "concurrency.asynpool:AsynPool.dead", "know that a child has died"),
    Name("celery", "concurrency.prefork:TaskPool.on_start", "know its pool", text="threads"),
)

#: What one with a pool of eventlet's greenlets needs.
EVENTLETS = (
    Name(
        "celery",
        "concurrency.eventlet:TaskPool._quick_put",
        "see that a greenlet has ended its job",
    ),
)

#: What it needs of a pool that has started.
STARTED = (
    Name("billiard", "._pool._cache.values()", "know which jobs the pool has"),
    Name("billiard", "._pool._pool.__iter__()", "know its children"),
    Name("billiard", "._pool._processes.__index__()", "fork when that harms nobody"),
    Name("billiard", "._pool._putlock.release()", "send an ack with the next job"),
    Name("billiard", "._pool._repopulate_pool(exitcodes)", "fork when that harms nobody"),
    Name("billiard", "._pool.maintain_pool()", "fork when that harms nobody"),
    Name("billiard", "._pool.on_job_process_down(job, pid)", "hear what a dead child has said"),
    Name("billiard", _RESULTS + "on_state_change(task)", "send an ack with the next job"),
    Name("celery", _RESULTS + "_recv_message(add_reader, fd, callback)", "read results on"),
    Name("celery", _RESULTS + "fileno_to_outq.__getitem__(fd)", "read results on"),
    Name("celery", "._pool.outbound_buffer.__iter__()", "know what no child was given yet"),
    Name("celery", "._pool.process_flush_queues(proc)", "hear what a dead child has said"),
    Name("celery", ".flush()", "keep what runs through a lost connection"),
)


def check_worker(pool_class: Any) -> None:
    """Refuse versions that a worker with such a pool cannot rely on.

    Raises:
        UnsupportedVersion: the text says which, and what to install.
    """
    check_transport()
    check(NAMES)
    if pool_class.uses_semaphore:
        check(PREFORK)
    if pool_class.__module__ == EVENTLET:
        check(EVENTLETS)


def check_started(pool: Any) -> None:
    """The same for what there is of a pool of processes only when it has started."""
    check(STARTED, pool)
