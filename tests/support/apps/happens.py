"""What may happen in a worker: `HAPPENS=slow_acks,sudden_ends` builds a shop where it does.

A name is a function of this module. What waits there is let on by the ledger, or by a file that
goes whose path is in the environment.
"""

from __future__ import annotations

import logging
import mmap
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from math import inf, isfinite
from pathlib import Path
from typing import Any
from weakref import WeakSet

import redis
from billiard.connection import Connection
from celery.app import trace
from celery.app.task import Task
from celery.backends.base import Backend
from celery.concurrency.asynpool import AsynPool
from celery.signals import (
    task_received,
    worker_process_init,
    worker_process_shutdown,
    worker_ready,
)
from celery.worker import state, strategy
from celery.worker.consumer.consumer import Evloop
from celery.worker.request import Request

from celery_superfetch.app import steps
from celery_superfetch.model import process
from celery_superfetch.model.start_permit import clock
from celery_superfetch.owner.process_owners import owners_of_process
from celery_superfetch.signals import job_recovered, ownership_lost
from celery_superfetch.store.database import Database
from celery_superfetch.transport.fetch import probation
from celery_superfetch.worker import (
    in_process,
    pool_adapter,
    pool_process,
    pool_slots,
    prefork,
    run_job,
    unknown_tasks,
)
from celery_superfetch.worker.gate import Gate
from celery_superfetch.worker.pool_process import PoolProcess
from celery_superfetch.worker.request import LeasedRequest
from support.apps.build import STEP
from support.driver import Driver
from support.interventions import call_before_acks
from support.servers.ledger import Ledger
from support.workers.untrusted import Unprintable

#: Bytes from which on billiard sends head and body of a message one after the other.
LARGE = 16385

NOBODY = 64_123  # the id of a user that no one else is

STACK = 2**29  # bytes of a thread's stack where threads are to be few; none of them is used


def until_released(what: str) -> None:
    """Say that we have come to it, and wait until the test lets us on."""
    book = Ledger(os.environ["LEDGER_URL"])
    book.started(what)
    while not book.released(what):
        time.sleep(STEP)


def while_there_is(file: str) -> None:
    while Path(os.environ[file]).exists():
        time.sleep(0.01)


def limited_forks() -> None:
    """The worker may not fork while there is a file NO_FORKS. It is not root's, whose processes the
    kernel does not limit, but may read root's files."""
    if os.getuid() == 0:
        reads = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
        os.execvp("setpriv", ["setpriv", f"--reuid={NOBODY}", *reads, *sys.orig_argv])
    file = Path(os.environ["NO_FORKS"])
    usual, most = resource.getrlimit(resource.RLIMIT_NPROC)
    current = usual

    def limit() -> None:
        nonlocal current
        wanted = 1 if file.exists() else usual
        if wanted != current:
            current = wanted
            resource.setrlimit(resource.RLIMIT_NPROC, (wanted, most))
            print(f"forks are {'limited' if wanted == 1 else 'free'}", flush=True)

    worker_ready.connect(lambda sender, **_: sender.hub.on_tick.add(limit), weak=False)


def forks_without_memory() -> None:
    """The worker has too little memory for a fork while there is a file NO_FORKS: its writable
    memory, of which nothing is used, is larger than the machine's."""
    file = Path(os.environ["NO_FORKS"])
    part = os.sysconf("SC_PHYS_PAGES") // 4 * mmap.PAGESIZE
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    held: list[mmap.mmap] = []

    def limit() -> None:
        if file.exists() and not held:
            # The kernel refuses one that is too large; it joins these, and refuses to copy that.
            held.extend(mmap.mmap(-1, part, flags=kind) for _ in range(16))
            print("forks are limited", flush=True)
        elif held and not file.exists():
            while held:
                held.pop().close()

    worker_ready.connect(lambda sender, **_: sender.hub.on_tick.add(limit), weak=False)


def short_patience_with_forks() -> None:
    """A pool without a process ends its worker after 3 s, if it ends it at all."""
    prefork.EMPTY_POOL_MAX_S = 3.0 if isfinite(prefork.EMPTY_POOL_MAX_S) else inf


def slow_acks() -> None:
    """An ack, and the note that a job was cancelled, wait to be let on."""
    mark_as_retry = Backend.mark_as_retry

    def note_when_told(self: Backend, *args: Any, **kwargs: Any) -> Any:
        until_released("note")
        return mark_as_retry(self, *args, **kwargs)

    call_before_acks(lambda: until_released("ack"))
    Backend.mark_as_retry = note_when_told


def unsettled() -> None:
    """The callback for a success fails before its job is settled: of a job that is named "never"
    each time, of one that is named "once" the first time."""
    make, ready = strategy.create_request_cls, state.task_ready

    def ready_or_not(request: Any, **how: Any) -> None:
        name = str(request.args[0]) if request.args else ""
        book = Ledger(os.environ["LEDGER_URL"])
        if name.startswith("never ") or (name == "once" and book.first("settled")):
            raise Unprintable
        ready(request, **how)

    strategy.create_request_cls = partial(make, task_ready=ready_or_not)


def own_errors() -> None:
    """The worker's loop raises an error of its own while a job named "poison" runs."""

    def fail() -> None:
        if any([*request.args] == ["poison"] for request in list(state.active_requests)):
            raise RuntimeError("the loop fails")

    worker_ready.connect(lambda sender, **_: sender.hub.on_tick.add(fail), weak=False)


def quits_before(owner: type, method: str) -> None:
    """SIGQUIT interrupts the worker just before it calls a method, once there is a file QUIT."""
    call, file = getattr(owner, method), Path(os.environ["QUIT"])

    def quit_and_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if file.exists():
            file.unlink()
            os.kill(os.getpid(), signal.SIGQUIT)
        return call(self, *args, **kwargs)

    setattr(owner, method, quit_and_call)


def quits_in_a_claim() -> None:
    quits_before(Gate, "free")


def quits_in_a_start() -> None:
    quits_before(Gate, "_start")


def quits_in_a_write() -> None:
    """SIGQUIT interrupts the worker when it has written the head of a job to a process, and not
    yet its body."""
    send, file = Connection.send_offset, Path(os.environ["QUIT"])

    def send_and_quit(self: Connection, *args: Any) -> int:
        sent = send(self, *args)
        if file.exists():
            file.unlink()
            os.kill(os.getpid(), signal.SIGQUIT)
        return sent

    Connection.send_offset = send_and_quit


def slow_results() -> None:
    """The pool's children send the two parts of a large result far apart."""
    send = Connection._send

    def send_when_told(self: Connection, part: Any, *args: Any) -> None:
        if len(part) >= LARGE:
            until_released("result")
        send(self, part, *args)

    Connection._send = send_when_told


def slow_children() -> None:
    """The pool's processes come up when a file is gone."""
    worker_process_init.connect(lambda **_: while_there_is("NO_CHILDREN"), weak=False)


def late_deaths() -> None:
    """A pool process is killed when it has published a retry that ends its job, before its ack."""
    release = steps.release

    def release_and_die(job: Any, *, is_over: bool = False) -> None:
        release(job, is_over=is_over)
        if is_over:
            os.kill(os.getpid(), signal.SIGKILL)

    steps.release = release_and_die


def slow_loads() -> None:
    """Each process of the pool loads for so long, LOAD_S=2.5, and takes END_S=2 to end."""
    load_s, end_s = (float(os.environ.get(name, "0")) for name in ("LOAD_S", "END_S"))
    started("loads", worker_process_init, load_s)
    started("ends", worker_process_shutdown, end_s)


def forgetful_processes() -> None:
    """The pool's processes do not know the task ``shop.note``: its module fails there, say."""

    def forget(**_: Any) -> None:
        tasks, *_rest = trace._localized
        del tasks["shop.note"]

    worker_process_init.connect(forget, weak=False)


def short_waits() -> None:
    """The log says after a second that jobs wait for processes that load."""
    pool_slots.LOADING_WARN_S = 1.0


def started(what: str, signal_: Any, takes_s: float) -> None:
    """Have a pool process say in the ledger that it loads, or ends, and take its time for it."""

    def take(**_: Any) -> None:
        Ledger(os.environ["LEDGER_URL"]).gave_up(str(os.getpid()), what)
        time.sleep(takes_s)

    signal_.connect(take, weak=False)


def slow_funerals() -> None:
    """The worker looks at a dead child of its pool for as long as a file exists."""
    read_the_dead = AsynPool.process_flush_queues

    def read_slowly(pool: AsynPool, child: Any) -> None:
        read_the_dead(pool, child)
        while_there_is("FUNERAL")

    AsynPool.process_flush_queues = read_slowly


def slow_receiver() -> None:
    """A receiver of `ownership_lost` takes time: until a file is gone."""

    def slow(**_: Any) -> None:
        Path(os.environ["BLOCK"]).with_suffix(".called").touch()
        while_there_is("BLOCK")

    ownership_lost.connect(slow, weak=False)


def slow_log() -> None:
    """A log handler takes time for lines about the jobs in flight: until a file is gone."""

    class SlowHandler(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            Path(os.environ["BLOCK"]).with_suffix(".called").touch()
            while_there_is("BLOCK")
            return True

    logging.getLogger("celery_superfetch.owner.in_flight").addHandler(SlowHandler())


def slow_loop() -> None:
    """The loop stays where it has the lock of what is in flight, once it is told to."""

    def stay() -> None:
        book = Ledger(os.environ["LEDGER_URL"])
        if book.released("stay") and book.first("stay"):
            [membership] = owners_of_process()
            with Driver.of(membership).lock:
                until_released("lock")

    def look(sender: Any, **_: Any) -> None:
        sender.timer.call_repeatedly(STEP, stay)

    worker_ready.connect(look, weak=False)


def slow_processes() -> None:
    """A pool process starts a job that it has received when it is told to."""
    in_time = PoolProcess._only_in_time

    def slowly(self: PoolProcess, receive: Callable[[], Any]) -> Callable[[], Any]:
        receive = in_time(self, receive)

        def receive_slowly() -> Any:
            if message := receive():
                until_released("received")
            return message

        return receive_slowly

    PoolProcess._only_in_time = slowly


def slow_starts() -> None:
    """The worker handles the start of a job until it is told to go on."""
    on_accepted = Request.on_accepted

    def accept_slowly(self: Request, *args: Any) -> None:
        until_released("accepted")
        on_accepted(self, *args)

    Request.on_accepted = accept_slowly


def rests() -> None:
    """A first rest for a suspect lasts so long, and the work after it: RESTS="1,4"."""
    first, work = os.environ["RESTS"].split(",")
    probation.FIRST_QUIESCE_S, probation.WORK_FACTOR = float(first), int(work)


def slow_receivers() -> None:
    """Whoever hears that a job was received asks a server something, and computes for a while."""
    book = Ledger(os.environ["LEDGER_URL"])

    def compute(**_: Any) -> None:
        book.released("nobody")
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            sum(range(1000))

    task_received.connect(compute, weak=False)


def solitudes() -> None:
    """The first solitude of a suspect lasts so long: SOLITUDE=1."""
    probation.FIRST_SOLO_WINDOW_S = float(os.environ["SOLITUDE"])


def late_consumer() -> None:
    """A worker that has registered consumes its queues when the test says so."""
    start = Evloop.start

    def start_late(self: Evloop, consumer: Any) -> None:
        until_released("consumer")
        start(self, consumer)

    Evloop.start = start_late


def short_pauses() -> None:
    """However often a job of an unknown task went back, it does so again after a second."""
    unknown_tasks.LONGEST_PAUSE = 1


def deaf_results() -> None:
    """The result backend is away when it is to be told that a job was cancelled."""

    def away(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("the result backend is away")

    Backend.mark_as_retry = away


def lost_lock_replies() -> None:
    """The reply to the second lock of a recall is lost."""
    try_lock = Database.try_lock
    recalled: list[str] = []

    def lose(database: Database, scope: str, seconds: float) -> bool:
        is_free = try_lock(database, scope, seconds)
        if scope.startswith("revoke:"):
            recalled.append(scope)
            if len(recalled) == 2:
                raise redis.ConnectionError("the reply is lost")
        return is_free

    Database.try_lock = lose


def revoked_at_their_spawn() -> None:
    """A revoke comes when the greenlet of a job has been made, and has not begun."""
    start = Gate._start

    def start_and_revoke(gate: Gate, request: Any) -> None:
        start(gate, request)
        if request.name == "shop.hold":
            state.revoked.add(request.id)
            request.terminate(gate.pool)

    Gate._start = start_and_revoke


def sudden_ends() -> None:
    """A child dies just as its worker reconnects: between the pool's look at its children and ours
    at their jobs."""
    remember = prefork._remember

    def remember_the_dead(processes: Any, kept: dict[Any, Any]) -> None:
        for job in kept.values():
            child = job._write_to
            if job._accepted and child is not None and child._is_alive():
                os.kill(child.pid, signal.SIGKILL)
                while child._is_alive():
                    time.sleep(0.01)
        remember(processes, kept)

    prefork._remember = remember_the_dead


def a_step_of_the_clock() -> None:
    """The clock was set after it had asked for its own start time: others are told another."""
    looked_up = process._current
    process._current = lambda pid: replace(looked_up(pid), start_time="1")


def few_threads() -> None:
    """Memory has room for the stacks of so many threads: THREADS=2."""

    def limit(**_: Any) -> None:
        threading.stack_size(STACK)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        room = used + int(os.environ["THREADS"]) * STACK + STACK // 2
        resource.setrlimit(resource.RLIMIT_AS, (room, room))

    worker_ready.connect(limit, weak=False)


def slow_books() -> None:
    """A look at Celery's books of what is reserved takes long, and jobs end meanwhile."""

    class Slow(WeakSet[Any]):
        def __iter__(self) -> Iterator[Any]:
            for request in super().__iter__():
                yield request
                time.sleep(0.05)

    state.reserved_requests.__class__ = Slow


def broken_requests() -> None:
    """The app has a request class of its own, which fails for each message."""

    class Broken(Request):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            raise KeyError("tenant")

    Task.Request = Broken


def broken_handover() -> None:
    """The app has a request class of its own, which fails before it hands a job over."""

    class Broken(Request):
        def revoked(self) -> bool:
            raise KeyError("tenant")

    Task.Request = Broken


def another_start() -> None:
    """Celery, or an instrumentation, starts jobs by another method than the request's own."""
    del LeasedRequest.execute_using_pool


_deadline: ContextVar[float] = ContextVar("_deadline", default=0.0)


def _write(line: str) -> None:
    with open(os.environ["STARTS"], "a") as file:
        file.write(f"{line}\n")


def watched_run_job(deadline: float, *job: Any, **kwargs: Any) -> Any:
    _deadline.set(deadline)
    return run_job.run_job(deadline, *job, **kwargs)


def watched_starts() -> None:
    """The file STARTS has a line for each job that begins, with the seconds until its deadline, and
    one for each that came too late."""
    run, redispatch = run_job.run, Gate.redispatch

    def watched_run(*args: Any, **kwargs: Any) -> Any:
        _write(str(_deadline.get() - clock()))
        return run(*args, **kwargs)

    def watched_redispatch(gate: Gate, request: Any) -> None:
        _write("again")
        redispatch(gate, request)

    run_job.run, Gate.redispatch = watched_run, watched_redispatch
    for module in (in_process, pool_adapter, pool_process):
        module.run_job = watched_run_job


def no_looks() -> None:
    """The pool looks at its children when it is told that one has ended, and not each 5 s."""
    AsynPool.timers = {}


def slow_recoveries() -> None:
    """Whoever hears of a recovered job takes a moment over it."""
    job_recovered.connect(lambda **_: time.sleep(0.01), weak=False)


def slow_start_events() -> None:
    """The event that a job has started waits to be let on."""
    send = Request.send_event

    def send_when_told(self: Any, type: str, **fields: Any) -> Any:
        if type == "task-started":
            until_released("start")
        return send(self, type, **fields)

    Request.send_event = send_when_told


def revoked_at_start() -> None:
    """A revoke that ends its run reaches a job as it begins, and cannot be stored."""
    send = Request.send_event

    def revoke_first(self: Any, type: str, **fields: Any) -> Any:
        if type == "task-started":
            self._terminate_on_ack = self.delivery.owner.executor.pool, "TERM"
        return send(self, type, **fields)

    def away(*_: Any, **__: Any) -> None:
        time.sleep(0.1)  # another greenlet runs: the kill is on its way
        raise redis.exceptions.ConnectionError("away")

    Request.send_event, Backend.mark_as_revoked = revoke_first, away
