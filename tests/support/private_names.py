"""Names of other projects that jobs depend on and that nobody has promised to keep.

A version whose names are others is found here, by the tests that run with it.
"""

from __future__ import annotations

import dis
import inspect
import re
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import version
from types import FunctionType
from typing import Any, NamedTuple

MISSING = object()

_ENTRY = re.compile(r"([^\s>~]+)(?:>=([\d.]+))?(?:~(\S+))?")


class Name(NamedTuple):
    """The path is that of a module and, behind a colon, of what is in it, or what a method of a
    class sets; with a point before it, of an object of run time. What is called has its arguments
    behind it, those with ``=`` by name."""

    project: str
    path: str
    why: str  # completes "needed to"
    since: tuple[int, ...] = ()
    text: str = ""  # that it is; of a function, one that stands in it

    def __str__(self) -> str:
        begun = self.path.startswith(".")
        return f"{self.path[1:]} in a started pool" if begun else f"{self.project}.{self.path}"

    def is_there(self, what: Any) -> bool:
        path, called, args = self.path.rstrip(")").partition("(")
        module, _, attributes = path.rpartition(":")
        try:
            found = what if path.startswith(".") else import_module(f"{self.project}.{module}")
        except ModuleNotFoundError as exc:
            if str(exc.name).startswith(self.project):
                return False
            raise  # what is missing is another's
        for part in filter(None, attributes.split(".")):
            owner, found = found, attribute(found, part)
        if found is MISSING or (self.text and self.text not in _texts(found)):
            return False
        return not called or _takes(found, isinstance(owner, type), args)


def names(table: str) -> tuple[Name, ...]:
    """Read a table: a project and how paths begin there, and below it each purpose. Behind a path
    may stand the version that brought it (``>=5.7``) and its text (``~text``)."""
    found, why = [], ""
    for line in table.strip().splitlines():
        if not line.startswith(" "):
            project, _, begin = line.partition(" ")
            continue
        begun, _, entries = line.strip().rpartition(": ")
        why = begun or why
        for path, first, text in _ENTRY.findall(entries):
            since = tuple(map(int, re.findall(r"\d+", first)))
            found.append(Name(project, begin + path, why, since, text))
    return tuple(found)


def missing(table: Iterable[Name], what: Any = None) -> list[str]:
    """What is not in the versions installed; a path with a point begins at ``what``."""
    due = (name for name in table if _version(name.project) >= name.since)
    return [f"{name}, to {name.why}" for name in due if not name.is_there(what)]


def _version(project: str) -> tuple[int, ...]:
    return tuple(map(int, version(project).split(".")[:2]))


def attribute(owner: Any, name: str) -> Any:
    """What is there under a name; None for what a method of a class sets, instrumented or not."""
    found = getattr(owner, name, MISSING)
    if found is not MISSING or not isinstance(owner, type):
        return found
    own = (inspect.unwrap(f) for one in owner.__mro__ for f in vars(one).values())
    codes = (f.__code__ for f in own if isinstance(f, FunctionType) and name in f.__code__.co_names)
    steps = (step for code in codes for step in dis.get_instructions(code))
    is_set = any(step.opname == "STORE_ATTR" and step.argval == name for step in steps)
    return None if is_set else MISSING


def _texts(found: Any) -> Iterable[Any]:
    code = getattr(inspect.unwrap(found), "__code__", None)
    return (found,) if code is None else (*code.co_consts, *code.co_names)


def _takes(found: Any, unbound: bool, args: str) -> bool:
    given = re.findall(r"\w+=?", args)
    by_name = {name[:-1]: None for name in given if name.endswith("=")}
    by_position = [None] * (unbound + len(given) - len(by_name))
    try:
        inspect.signature(found).bind(*by_position, **by_name)
    except TypeError:  # not to be called, or not in this way
        return False
    except ValueError:  # it is of C, and does not say how; or a method that takes not even itself
        return not inspect.ismethod(found)
    return True


#: What any consumer needs.
CONSUMERS = names("""
kombu transport.redis:Channel.
    know from which queues to claim: _active_queues _update_queue_cycle() _tag_to_queue
        _basic_cancel(consumer_tag)
    know the lists of a queue: _q_for_pri(queue,pri) _lookup(exchange,routing_key)
        _get_message_priority(message,reverse=)
    hand on a step: _put(queue,message)
    leave to kombu what wants no ack, and no more: active_queues _fanout_queues _brpop_read()
    say of a message without ack that it was delivered before: _get(queue)
    count and purge suspects, too: _size(queue) _purge(queue)
    say that a queue exists: _has_queue(queue)
    declare bindings that are gone again: _queue_bind(exchange,routing_key,pattern,queue)
    keep x-expires: _new_queue(queue) _expires>=5.7
    leave a server that became a replica: _connparams(asynchronous)
    keep no connection that is not used: client _create_client(asynchronous=) _registered _in_poll
        _pool _get_pool(asynchronous=) _disconnect_pools() auto_delete_queues
        _on_connection_disconnect(connection)
kombu transport.redis:MultiChannelPoller.
    fetch once in each turn of the loop: _channels _in_protected_read on_poll_start()
        get(callback,timeout)
    hear blocking reads: on_readable(fileno) handle_event(fileno,event) _fd_to_chan
    forget a connection that is closed: _chan_to_sock
kombu asynchronous.hub:Hub.
    watch no socket together with a forked child: _create_poller()
kombu transport.virtual:QoS.
    give jobs back when a channel closes: restore_unacked() restore_unacked_once(stderr)
kombu transport.virtual:
    put back what a cancelled read has taken: Channel._restore(message)
kombu transport.redis:
    ask Sentinels: SentinelChannel._sentinel_managed_pool(asynchronous)
redis connection:Connection.
    wait for a socket, and know that it is another: _sock can_read(timeout)
    leave a server that became a replica: read_response() redis_connect_func
    send acks ahead: send_packed_command(command,check_health=)
redis connection:SSLConnection.
    find that a server speaks no TLS: _connect()
redis
    have a heart that no full pool can stop: client:Redis.connection
    keep no connection open that was not needed of late: connection:ConnectionPool.reset()
        connection:ConnectionPool._available_connections
        connection:ConnectionPool._created_connections connection:ConnectionPool._lock
        connection:ConnectionPool.release(connection)
    know where Sentinels are: sentinel:SentinelConnectionPool.sentinel_manager
""")

#: Under gevent's monkey patching.
GEVENTS = names("""
gevent
    be heard while its hub is blocked: monkey:get_original(mod_name,item_name) socket:socket._sock
        ssl:SSLSocket._sslobj
""")

#: What any worker needs.
WORKERS = names("""
celery worker.request:Request.
    settle a job: acknowledge() on_failure(exc_info) on_timeout(soft,timeout)
    run a part of a chord again: chord _success_was_stored()>=5.7
    count strikes: reject(requeue=)
    give back what Celery cancels: cancel(pool) _already_cancelled _announce_cancelled()
    tell who was revoked from who lost its child: _already_revoked
    hand itself to the pool: _apply_result execute_using_pool(pool)~on_accepted revoked()
        time_limits
    refuse a message that would end the worker: _payload
    go on where a callback of its start fails: on_accepted(pid,time)
celery worker.request:
    delete the method that hides a request's own start: create_request_cls(b,t,p,h,e,app=)
celery worker.state:
    know what runs, and what waits for a slot: active_requests reserved_requests
    take a job out of Celery's books, or hand it over again: requests task_ready(request)
        task_reserved(request)
    start nothing in a worker that ends: should_stop should_terminate
celery worker.
    start each request that is due: components:Pool.process_task
        consumer.consumer:Consumer.on_task_request
    let a job of the solo pool end: worker:WorkController.wait_for_soft_shutdown()
    keep to the free slots: consumer.tasks:Tasks.can_consume>=5.6
    serve tasks by a request class of ours: consumer.consumer:Consumer.update_strategies()
    give back jobs of unknown tasks: consumer.consumer:Consumer.on_unknown_task(body,message,exc)
    keep what is invalid: consumer.consumer:Consumer.on_invalid_task(body,message,exc)
    keep what it cannot decode: consumer.consumer:Consumer.on_decode_error(message,exc)
celery concurrency.
    know which pool it is: base:BasePool.is_green base:BasePool.options
        solo:TaskPool thread:TaskPool
    see that a thread has ended its job: thread:ApplyResult.f
    know whether a thread for a job comes up: thread:TaskPool.executor
celery app.
    serve tasks by a request class of ours: task:Task.Request
        task:Task.Strategy~celery.worker.strategy:default
    announce killed jobs: task:Task._backend base:Celery._get_backend()
    count the parts of chords: task:Task._backend base:Celery._backend base:Celery._get_backend()
    store a failure where Celery would: trace:get_actual_ignore_result(task,request)>=5.6
    examine each message that a job publishes: amqp:AMQP.send_task_message
    know what a job hands on: trace:fast_trace_task(task,uuid,request,body,type,encoding)
        trace:_localized.__iter__()
        trace:trace_task_ret(name,uuid,request,body,type,encoding) task:Task.on_replace(sig)
        trace:build_tracer(name,task,loader,hostname,app=)
celery utils.
    call receivers that may exit: dispatch.signal:Signal._live_receivers(sender)
    replace what cannot be pickled: serialization:UnpickleableExceptionWrapper(mod,name,args,text)
celery backends.redis:
    keep a success: RedisBackend._set(key,value) RedisBackend.expires RedisBackend.client
    count the parts of chords: RedisBackend._unpack_chord_result(tup,decode)
        RedisBackend._chord_zset RedisBackend.on_chord_part_return(request,state,result)
        RedisBackend._chord_part_return_script>=5.7 RedisBackend._chord_result_expires>=5.7
        RedisBackend._chord_cleanup_script>=5.7 CHORD_CLEANUP_LUA>=5.7
        RedisBackend._chord_claim_extend_script>=5.7 CHORD_CLAIM_EXTEND_LUA>=5.7
celery
    announce killed jobs: backends.base:Backend._call_task_errbacks(r,e,t)
    count a part of a chord again: backends.redis:RedisBackend.on_chord_part_return(r,s,v)
    know when Celery publishes what follows a job: backends.base:Backend.mark_as_done(id,result)
        backends.base:Backend.mark_as_failure(id,exc,traceback,request=)
    give jobs back at once: apps.worker:_shutdown_handler~worker_
    set an app's defaults: utils.collections:ConfigurationView._to_keys(key)
        utils.dispatch.signal:Signal.receivers
    know who chose that a task acks early: app.task:Task.bind~__bound__
    run a task without its signals: app.task:Task.__trace__ app.trace:trace_ok_t
kombu
    connect from the app's own pool: connection:Connection._info(resolve=)
    let greenlets run while it waits for the broker: utils.functional:sleep
""")

#: What a worker with a pool of processes needs as well.
PREFORK = names("""
billiard
    know whose job it is: pool:ApplyResult._accept_callback pool:ApplyResult._write_to
    return a job that has not begun: pool:ApplyResult._set(i,obj) pool:ApplyResult._scheduled_for
    know whether a child has begun with a job: pool:ApplyResult._accepted
        pool:ApplyResult._time_accepted
    take a job back from the pool: pool:ApplyResult.discard()
    hear what a dead child has said: process:BaseProcess._is_alive()
    end a job whose start it reads at a cold shutdown: pool:ApplyResult._ack
    know that a process was told to end: common:terminate_handler_fired()>=4.3
celery concurrency.
    know that a child has died: asynpool:AsynPool.dead
    hear which process leaves: asynpool:Worker._make_child_methods() asynpool:Worker.wait_for_job
        asynpool:Worker._ensure_messages_consumed(completed=) asynpool:Worker.prepare_result(result)
        asynpool:Worker.outq asynpool:Worker.maxtasks asynpool:Worker.max_memory_per_child
        asynpool:AsynPool.Worker prefork:TaskPool.Pool
    end a job whose start it reads at a cold shutdown: asynpool:ResultHandler._recv_message
    give no job to a busy process: asynpool:SCHED_STRATEGY_FAIR
    withdraw a job from a process that leaves: asynpool:_get_job_writer(job)
        asynpool:AsynPool._put_back
    listen for the end of each child: asynpool:AsynPool._track_child_process~_sentinel_poll
    know its pool: prefork:TaskPool.on_start~threads
""")

#: What it needs of such a pool that has started.
STARTED = names("""
billiard ._pool.
    know its children and their jobs: _cache.values() _pool.__iter__()
    fork when that harms nobody: _processes.__index__() _repopulate_pool(exitcodes) maintain_pool()
    hear what a dead child has said: on_job_process_down(job,pid)
    shrink without harm: shrink(n) on_shrink(n) _putlock.shrink()
    have no slot free while the pool looks at its processes: _maintain_pool()
celery .
    know which process is up, and idle: _pool._all_inqueues.discard(fd) _pool._fileno_to_inq.get(fd)
        _pool._busy_workers.discard(fd) _pool._proc_alive_timeout.__float__()
        _pool._result_handler.state_handlers.get(15)
    give no job to a busy process: _pool.sched_strategy.__index__()
    replace pipes with a job in them: _pool._process_cleanup_queues(proc) _pool._queues.get(q)
        _pool._find_worker_queues(proc) _pool.create_process_queues()
    shrink without harm: shrink(n)
    read results on: _pool._result_handler._recv_message(add_reader,fd,callback,load=)
        _pool._result_handler.fileno_to_outq.__getitem__(fd)
    forget the pipes of a lost child: _pool.destroy_queues(queues,proc)
        _pool._fileno_to_outq.__getitem__(fd) _pool._fileno_to_synq.__getitem__(fd)
    know what no child was given yet: _pool.outbound_buffer.__iter__()
    listen for the end of each child: _pool._untrack_child_process(proc,hub)
    hear what a dead child has said: _pool.process_flush_queues(proc)
    keep what runs through a lost connection: flush()
""")
