"""The names of Celery and billiard that a worker depends on, and how they are looked for."""

from __future__ import annotations

from typing import Any

from ..transport.private_names import check, check_transport, names

#: The only strategy that is known to hand a request to the pool before it runs. Others (batches)
#: keep messages of their own, and settle those themselves.
ASKS_FIRST = "celery.worker.strategy:default"

#: Where the pools are that only their module tells from others.
SOLO, THREADS = "celery.concurrency.solo", "celery.concurrency.thread"
EVENTLET = "celery.concurrency.eventlet"

#: What any worker needs.
NAMES = names(f"""
celery worker.request:Request.
    settle a job: acknowledge() on_failure(exc_info) on_timeout(soft,timeout)
    count strikes: reject(requeue=) _retry_worker_lost(exc,exc_info)>=5.7 _context
    give back what Celery cancels: cancel(pool) _already_cancelled _announce_cancelled()
    tell who was revoked from who lost its child: _already_revoked
    hand jobs over when they may start: _apply_result execute_using_pool(pool)~on_accepted revoked()
    refuse a message that would end the worker: _payload
    end what an operator kills: terminate(pool) _announce_revoked(reason,terminated,signum,expired)
celery worker.state:
    know what runs, and what waits for a slot: active_requests reserved_requests
    take a job out of Celery's books, or hand it over again: requests task_ready(request)
        task_reserved(request)
    start nothing in a worker that ends: should_stop should_terminate
celery worker.
    survive whatever message comes: worker:WorkController._process_task(req)
        components:Pool.process_task consumer.consumer:Consumer.on_task_request
    let a job of the solo pool end: worker:WorkController.wait_for_soft_shutdown()
    keep to the free slots: components:Pool._quick_release consumer.tasks:Tasks.can_consume>=5.6
    serve tasks by a request class of ours: consumer.consumer:Consumer.update_strategies()
    give back jobs of unknown tasks: consumer.consumer:Consumer.on_unknown_task(body,message,exc)
celery concurrency.
    hand jobs over: base:BasePool.apply_async(target,args,kwargs)
    know which pool it is: base:BasePool.is_green base:BasePool.options base:BasePool.uses_semaphore
        solo:TaskPool.__module__~{SOLO} thread:TaskPool.__module__~{THREADS}
    see that a thread has ended its job: thread:ApplyResult.f
    know whether it can end a job that runs: base:BasePool.terminate_job(pid)
celery app.
    serve tasks by a request class of ours: task:Task.Request task:Task.Strategy~{ASKS_FIRST}
    announce killed jobs: task:Task._backend base:Celery._backend base:Celery._get_backend()
        task:get_actual_ignore_result(task,request)>=5.7
celery
    announce killed jobs: backends.base:Backend._call_task_errbacks(r,e,t)
        events.dispatcher:EventDispatcher.buffer_group events.dispatcher:EventDispatcher.groups
    give jobs back at once: apps.worker:_shutdown_handler~worker_
    set an app's defaults: utils.collections:ConfigurationView._to_keys(key)
kombu
    forget what waited at a lost connection: asynchronous.timer:Timer._queue
    connect from the app's own pool: connection:Connection._info(resolve=)
    let greenlets run while it waits for the broker: utils.functional:sleep
""")

#: What a worker with a pool of processes needs as well.
PREFORK = names("""
billiard
    know whose job it is: pool:ApplyResult._accept_callback pool:ApplyResult._write_to
    know whether a child has begun with a job: pool:ApplyResult._accepted
        pool:ApplyResult._time_accepted
    take a job back from the pool: pool:ApplyResult.discard()
    hear what a dead child has said: process:BaseProcess._is_alive()
celery concurrency.
    know that a child has died: asynpool:AsynPool.dead
    know its pool: prefork:TaskPool.on_start~threads
""")

#: What one with a pool of eventlet's greenlets needs.
EVENTLETS = names("""
celery concurrency.eventlet:TaskPool.
    see that a greenlet has ended its job: _pool_map
""")

#: What it needs of such a pool that has started.
STARTED = names("""
billiard ._pool.
    know its children and their jobs: _cache.values() _pool.__iter__()
    fork when that harms nobody: _processes.__index__() _repopulate_pool(exitcodes) maintain_pool()
    hear what a dead child has said: on_job_process_down(job,pid)
celery .
    read results on: _pool._result_handler._recv_message(add_reader,fd,callback)
        _pool._result_handler.fileno_to_outq.__getitem__(fd)
    know what no child was given yet: _pool.outbound_buffer.__iter__()
    listen for the end of each child: _pool._untrack_child_process(proc,hub)
    hear what a dead child has said: _pool.process_flush_queues(proc)
    keep what runs through a lost connection: flush()
""")


def check_worker(pool_class: Any) -> None:
    """Raise UnsupportedVersion for versions that a worker with such a pool cannot rely on."""
    check_transport()
    check(NAMES)
    if pool_class.uses_semaphore:
        check(PREFORK)
    if pool_class.__module__ == EVENTLET:
        check(EVENTLETS)
