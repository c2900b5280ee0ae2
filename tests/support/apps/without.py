"""What each safety is there for: `WITHOUT=lost_acks,rests` builds the shop without these.

A name is a function of this module; what it says is what becomes of a worker without it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
from dataclasses import replace
from math import inf
from typing import Any

from kombu.transport import redis
from kombu.transport.virtual import Message

from celery_superfetch.app import (
    announcement,
    broker,
    drill,
    forked_children,
    installation,
    patient_calls,
    result_backends,
    sender,
    task_hooks,
)
from celery_superfetch.app import reaper as reaper_of_app
from celery_superfetch.app import steps as ends
from celery_superfetch.app.quiet_trace import QuietTask
from celery_superfetch.console import listener
from celery_superfetch.model import fork_gate, start_permit
from celery_superfetch.model.foreign import describe, message_of
from celery_superfetch.model.process import look_at
from celery_superfetch.model.step import FOLLOWING, Run
from celery_superfetch.model.strikes import Blame, Recovery
from celery_superfetch.model.verdict import Reason
from celery_superfetch.owner import gevent_pulse, heartbeat_thread
from celery_superfetch.owner import owner as owner_of
from celery_superfetch.owner.heartbeat import HeartbeatSession
from celery_superfetch.reaper import evidence, recovery
from celery_superfetch.reaper.drain import finish
from celery_superfetch.store import database, dead_set, keys, private_lists
from celery_superfetch.store.owner_registry import OwnerRegistry
from celery_superfetch.store.queues import QuiesceAnswer
from celery_superfetch.store.redis import clients, connections, pools, scripts
from celery_superfetch.transport import channel, deliveries, frugal, poller
from celery_superfetch.transport.fetch import blocking_reads
from celery_superfetch.transport.fetch.probation import Probation
from celery_superfetch.worker import (
    bootsteps,
    in_process,
    job_limits,
    pool_adapter,
    pool_process,
    prefork,
    request,
    run_job,
    scheduled_jobs,
    unknown_tasks,
    unreadable_jobs,
)
from celery_superfetch.worker import gate as before_the_pool
from celery_superfetch.worker import maintenance as maintenance_of
from celery_superfetch.worker import request as request_of_jobs
from celery_superfetch.worker import settling as settling_of_jobs
from celery_superfetch.worker.maintenance import MaintenanceThread
from celery_superfetch.worker.request import LeasedRequest
from support import interventions


def lost_claims() -> None:
    """Claims whose reply was lost are not looked for."""
    interventions.reconcile_nothing()


def lost_acks() -> None:
    """Acks that broke off are not sent again."""
    interventions.send_acks_once()


def lost_jobs() -> None:
    """A requeue that finds no claim is taken for one that went."""
    interventions.examine_no_missing_jobs()


def data_loss() -> None:
    """A worker that the server forgot says so in its log alone."""
    interventions.record_no_data_loss()


def known_names() -> None:
    """An owner that has lost a part of its keys takes a new name, as if it were unknown."""
    heartbeat = OwnerRegistry.heartbeat

    def forgotten(self: OwnerRegistry, *args: Any, **more: Any) -> Any:
        heard = heartbeat(self, *args, **more)
        return heard._replace(status=heard.status.replace("missing", "unknown"))

    OwnerRegistry.heartbeat = forgotten


def forgotten_names() -> None:
    """What landed under a name that the server has forgotten since is left there."""
    owner_of.Owner.return_landed = lambda self, owner, lists: None


def running() -> None:
    """A channel that closes gives back whatever it has delivered."""
    interventions.forget_starts()


def rests() -> None:
    """Whoever is busy comes to rest for a suspect, and for as long as it takes."""
    Probation._ask_quiesce = lambda self, waiting: QuiesceAnswer(not waiting, bool(waiting), False)


def ends_of_solitude() -> None:
    """Nothing starts beside a suspect until it has ended."""
    Probation._end_solo_window = lambda self: None


def paused_queues() -> None:
    """Whatever an operator pauses, workers go on."""
    made = keys.Keys.__init__

    def init(self: keys.Keys, prefix: str = "") -> None:
        made(self, prefix)
        self.paused = "superfetch:nobody writes here"

    keys.Keys.__init__ = init


def requeues_of_pauses() -> None:
    """What a worker has reserved when it learns of a pause stays with it."""
    requeue = deliveries.QoS.requeue_waiting
    deliveries.QoS.requeue_waiting = lambda self, lists=None: requeue(self) if lists is None else 0


def longer_solitudes() -> None:
    """Each solitude of a suspect is as short as its first."""
    recovery_of = Recovery.of

    def first(*args: Any, **named: Any) -> Recovery:
        found = recovery_of(*args, **named)
        return replace(found, solo_runs=min(1, found.solo_runs))

    Recovery.of = first


def spared_connections() -> None:
    """Each connection that the server refuses is a lost broker."""
    blocking_reads.is_full = lambda error: False


def patience() -> None:
    """Whoever runs nothing takes a suspect, although other jobs wait for it."""
    act = Probation.act
    Probation.act = lambda self, lists, queues_are_empty: act(self, lists, True)


def probation() -> None:
    """All that a dead worker held is blamed for its death, and nothing runs alone."""
    recovery_of = Recovery.of
    recovery.blame = lambda *_: Blame.EXACT
    Recovery.of = lambda *args, **named: replace(recovery_of(*args, **named), solo_runs=0)


def punctuality() -> None:
    """What gevent's timers bring too early starts too early."""
    before_the_pool.sleep_until = lambda due: None


def reception() -> None:
    """What Celery raises is raised, and a job that another app has spared runs."""
    unreadable_jobs.reject_unreadable = lambda *_, **__: False
    job_limits.apply_limits = lambda *_: False


def parking() -> None:
    """Jobs for later wait in the memory of whoever claims them."""
    scheduled_jobs.park_if_due_later = lambda message: False


def reading() -> None:
    """Whatever fails before a job runs is its message's fault."""
    Message.is_read = property(lambda _: False, lambda *_: None)


def handover() -> None:
    """Jobs start whatever became of them meanwhile."""
    LeasedRequest.may_start = True

    def start(request: Any) -> float:
        request.deadline = start_permit.clock() + 60.0
        return float(request.deadline)

    LeasedRequest.start = start


def an_end_of_trust() -> None:
    """Jobs start however long ago their owner was heard."""
    start_permit.PERMIT_HEARTBEATS = 1e6


def ended_permits() -> None:
    """Who says that it is hung goes on as after any heartbeat."""
    start_permit.StartPermit.end = lambda self: None


def excuses() -> None:
    """Whatever became of a worker may be the fault of what it ran."""
    blame = recovery.blame
    recovery.blame = lambda job, ran, *known: blame(
        job, ran._replace(not_blamed=False, stopping=False), *known
    )


def stops() -> None:
    """What a stop cuts short goes back like what only waited, and is counted by nobody."""
    interventions.count_no_stops()
    recovery_of = Recovery.of

    def uncounted(*args: Any, **named: Any) -> Recovery:
        blamed = Blame.NONE if named["blame"] is Blame.STOP else named["blame"]
        return recovery_of(*args, **{**named, "blame": blamed})

    Recovery.of = uncounted


def quiesces_in_vain() -> None:
    """Suspects wait for a worker without other work, however long that takes."""
    interventions.claim_no_suspects_alongside()


def own_losses() -> None:
    """A job that lost its own processes alone goes on probation like any suspect."""
    recovery_of = Recovery.of
    Recovery.of = lambda *args, **named: recovery_of(*args, **{**named, "is_own_loss": False})


def last_strikes_alone() -> None:
    """A job one strike before its last runs alongside others on threads."""
    job_limits.crash_ends_all_jobs = lambda owner: False


def a_hearing() -> None:
    """Who has another start time is dead, whether it is heard or not."""
    evidence.look_at = lambda *process: (
        Reason.PROCESS_GONE if look_at(*process) is Reason.PID_REUSED else look_at(*process)
    )


def stopper() -> None:
    """Nobody minds what waits when a worker is told to stop, save at its end."""
    bootsteps.Stopper.requeue_waiting = lambda self: None
    before_the_pool.is_stopping = lambda owner: False
    prefork.keep_running_jobs = lambda pool, requeue: None


def whole_writes() -> None:
    """A cold shutdown begins although a process has only a part of its job."""
    pool_adapter.ProcessAdapter.receivers = lambda self: []


def ends_of_late_starts() -> None:
    """A cold shutdown waits for a job whose start the worker reads too late."""
    request_of_jobs.end_late_start = lambda owner: None


def undisturbed_starts() -> None:
    """A cold shutdown begins while the worker handles the start of a job."""
    pool_adapter.PoolAdapter.is_at_work = lambda self: False


def maintenance() -> None:
    """Nobody reaps but the task that beat sends."""
    MaintenanceThread.run = lambda self: None


def following() -> None:
    """The servers of a failover list have nothing to do with each other."""
    owner_of.Owner.follow = lambda self, params: params["port"] == self.params["port"]
    HeartbeatSession._find_successor = lambda self: None


def home() -> None:
    """Connections go where they are led, wherever the heart is."""
    clients.PrimaryGuard.refuse_stranger = lambda *_: None


def leaving() -> None:
    """READONLY is a reply like any other, as in stock redis-py."""
    connections.following = lambda connection_class: connection_class


def leaving_results() -> None:
    """The connection of a result backend stays where it is, whatever it is refused."""
    result_backends.close_if_refused = lambda pool: pool


def look_at_the_loop() -> None:
    """The heart vouches for the loop whatever that does."""
    HeartbeatSession.check_loop = lambda self: None


def quiet_traces() -> None:
    """The reap task runs as any task does."""
    QuietTask.__trace__ = None


def repeated_heartbeats() -> None:
    """A heartbeat whose connection was closed while it lay idle has failed."""
    HeartbeatSession._repeat_if_closed = lambda self, act: act()


def warm_pulses() -> None:
    """Under gevent each heartbeat's connection lies idle until the next is due."""
    gevent_pulse.WARM_INTERVAL = 3600.0


def looks_at_idle_reads() -> None:
    """Whoever waits for a job does not look whether the connection was closed."""
    clients.LoneConnection.closed_while_idle = False


def abandoned_reads() -> None:
    """Reads that the server does not end wait on while a job runs."""
    blocking_reads.BlockingReads._abandon = lambda self, _: None


def closed_clients() -> None:
    """kombu's connection for queues without acks stays when none is consumed any more."""
    channel.Channel._close_idle_client = lambda self: None


def closing_clients() -> None:
    """Clients of a moment leave their connections to the garbage collector."""
    pools.shared_pool = lambda params: pools.SharedPool(**params)
    del pools.SharingClient.close


def shared_pools() -> None:
    """Each channel has a pool of its own, and the owner has another."""
    alone = lambda params: pools.SharedPool(**params)  # noqa: E731
    frugal.shared_pool = owner_of.shared_pool = alone


def heart_of_its_own() -> None:
    """The heart sees to what follows from its heartbeats, too."""
    alone = HeartbeatSession.beat

    def and_all_that_follows(self: HeartbeatSession) -> Any:
        heard = alone(self)
        self._listener.catch_up()
        return heard

    HeartbeatSession.beat = and_all_that_follows


def announcements_outside_of_sends() -> None:
    """The thread whose acks found no claim announces it, and holds the lock meanwhile."""
    interventions.announce_in_sends()


def log_lines_outside_of_sends() -> None:
    """A log line about the jobs in flight is written by the thread that finds its cause, which
    holds the lock meanwhile."""
    interventions.log_at_once()


def pulse() -> None:
    """Under gevent the heart is a greenlet, and hangs with the hub."""
    heartbeat_thread.threads_are_greenlets = lambda: False


def time_limits() -> None:
    """Jobs that run lose their time limits with the connection, before Celery 5.7."""
    prefork.loses_timers = lambda: False


def greenlet_kills() -> None:
    """Whoever kills the greenlet of a job is taken for Celery."""
    in_process._is_greenlet_kill = lambda error: False


def parked_revocations() -> None:
    """The error of a result backend that cannot store a revocation goes on to Celery."""
    request.LeasedRequest._announce_revoked = request.Request._announce_revoked


def refused_forks() -> None:
    """What the system says to a fork goes on to Celery, with the child that is none."""
    prefork.retry_refused_forks = lambda pool, call_later: None


def ends_of_empty_pools() -> None:
    """A worker whose pool has no process lives on."""
    prefork.EMPTY_POOL_MAX_S = inf


def second_looks() -> None:
    """Nobody looks again at a child of the pool that was not dead yet."""
    rewatch_children = prefork.rewatch_children
    prefork.rewatch_children = lambda pool, call_later: rewatch_children(pool, lambda *_: None)


def half_a_result() -> None:
    """What was read of a child's result is lost with the event loop."""
    prefork.keep_partial_results = lambda results: None


def reads_that_never_block() -> None:
    """A worker that stops waits for the rest of a result, whatever became of the child."""
    prefork.read_without_blocking = lambda pool: None


def deadlines() -> None:
    """A job begins however late the code comes to it that runs it."""
    run_job.clock = pool_process.clock = lambda: 0.0


def pool_slots() -> None:
    """A slot of a pool is a process that is to be there, and what has not begun is a task of its
    process."""
    pool_adapter.PoolSlots = lambda *_: None
    bootsteps.report_from_processes = lambda pool: None


def last_words() -> None:
    """What a dead child of the pool had said is not read."""
    prefork.read_last_messages = lambda pool: None


def dead_children() -> None:
    """A child that dies while its worker reconnects is not remembered."""
    remember = prefork._remember

    def of_the_living(processes: Any, kept: dict[Any, Any]) -> None:
        remember(processes, {i: job for i, job in kept.items() if job._write_to._is_alive()})

    prefork._remember = of_the_living


def cancelled() -> None:
    """Nobody notices that the result backend was not told of a cancelled job."""
    LeasedRequest.__setattr__ = lambda request, name, value: (
        None if name == "_already_cancelled" else object.__setattr__(request, name, value)
    )


def unannounced_ends() -> None:
    """An error of the result backend ends Celery's handler of a cold shutdown."""
    del LeasedRequest._announce_cancelled


def settling() -> None:
    """What Celery cancels is ended also where its run is over, and only its ack is not sent."""
    LeasedRequest._settles = property(lambda _: False, lambda *_: None)
    whole_ends()


def whole_ends() -> None:
    """A kill, or a hard time limit, interrupts a greenlet also while it settles its job."""
    del pool_adapter.GreenletAdapter.run_to_end


def outlived() -> None:
    """A child that dies after it outlived a signal was ended on purpose, whatever it runs."""
    LeasedRequest.was_ended_by_celery = True


def drill_header() -> None:
    """A job of the drill's task sleeps for as long as its message says, whoever sent it."""
    drill.sleep_s = lambda seconds, header: seconds


def gate() -> None:
    """Nothing keeps forks and other threads apart."""
    fork_gate.kept_off = contextlib.nullcontext
    prefork.postpone_forks = lambda *_: None


def _as_it_is(run: Any, *args: Any, **kwargs: Any) -> Any:
    return run(*args, **kwargs)


def plain_outcomes() -> None:
    """What a task raises comes to the worker as it is."""
    pool_adapter.run_and_pack = pool_adapter.run_and_check = _as_it_is


def own_errors() -> None:
    """A worker that ends by an error of its own is as one that was told to stop."""
    bootsteps.job_may_have_ended_worker = lambda worker: False


def exit_codes() -> None:
    """A worker that ends for want of file descriptors has the exit code of one that was told to."""
    bootsteps.exit_with_failure = lambda worker: None


def bounded_listeners() -> None:
    """Listeners take any number of connections, and each may last for ever."""
    listener.OpenConnections.add = lambda self, connection: None


def _unpickle(child: Any, stream: Any) -> Any:
    return pickle.load(stream)


def bad_messages() -> None:
    """What a pool process sends and nobody can unpickle ends the worker."""
    prefork.unpickle_or_end = _unpickle


def freed_slots() -> None:
    """A job whose settling fails keeps its slot."""
    request_of_jobs.call_back = _call_back


def _call_back(request: Any, callback: Any, *args: Any, is_end: bool = True) -> None:
    """As the worker's own, but an error of the callback is raised to the pool."""
    try:
        callback(*args)
    finally:
        if is_end and (gate := request.delivery.owner.executor).adapter.ends_by_callback:
            gate.ended(request)


def turns() -> None:
    """All notices may wait for the result backend at once."""
    announcement.backend_lock = lambda database: contextlib.nullcontext()


def slots() -> None:
    """A connection goes where it is told, whoever serves its slot."""
    channel.Channel._slot = lambda self, params: None


def sent_steps() -> None:
    """A job whose next message could not be sent has ended, as in stock."""
    broker.sender = lambda send: send


def chord_counts() -> None:
    """Chords are counted, and their bodies published, as Celery does it."""
    result_backends.count_parts_once = lambda backend: None


def ends_of_chords() -> None:
    """A chord that waits for a killed part is told of it as Celery tells of any that failed, and
    not at all where its result is stored."""
    announcement.fail_part = lambda *_: None


def second_runs() -> None:
    """What lost its child after its result was stored is acked, also a part of a chord."""
    del LeasedRequest._success_was_stored


def handing_on() -> None:
    """What a job hands on is published as any message, whoever has the job by then."""
    channel.Channel._put = redis.Channel._put


def numbers_of_messages() -> None:
    """A second message of one id in a run is taken for a repetition of the first."""
    step = Run.step

    def same(self: Run, *args: Any, **named: Any) -> Any:
        self._published.clear()
        return step(self, *args, **named)

    Run.step = same


def origins() -> None:
    """What a body publishes by hand counts as the end of its job, and has its ids."""
    Run.publishes_followers = property(lambda self: True, lambda *_: None)

    def show_ids(self: Run, message: Any) -> None:
        message.update({n: self.followers(n, message[n]) for n in FOLLOWING if message.get(n)})

    Run.hide_ids = show_ids


def seeds() -> None:
    """What follows a job gets its ids from the task id, which senders use again."""
    ends.seed_of = lambda properties, task_id: task_id


def patience_with_refusals() -> None:
    """What the server refuses for a while ends the try."""
    sender.is_temporary = patient_calls.is_temporary = lambda exc: False


def impatience() -> None:
    """A notice waits in its slot for a server that refuses a write, as other jobs do."""
    Run.is_impatient = property(lambda run: False, lambda run, value: None)


def completing() -> None:
    """What Celery does not run again, since it has its result, has not counted in its chord."""
    ends._complete = lambda *_: None


def parts() -> None:
    """A script gives a list of any length to one command."""
    whole = scripts.source

    def unpacked(name: str) -> str:
        by_thousands = (
            "for first = 1, #values, 1000 do\n    local last = math.min(first + 999, #values)"
        )
        assert by_thousands in scripts._shared()[0]
        at_once = "for first = 1, #values, 2 ^ 40 do\n    local last = #values"
        return whole(name).replace(by_thousands, at_once)

    scripts.source = unpacked
    private_lists.LANDINGS_PER_SCRIPT = 2**40  # and all lists of an owner go into one script


def free_locks() -> None:
    """The locks of all handlers of logs are held over a fork, as CPython 3.7.1 did."""
    held: list[logging.Handler] = []

    def take() -> None:
        for reference in list(logging._handlerList):  # type: ignore[attr-defined]
            if (handler := reference()) is not None and handler.lock is not None:
                handler.acquire()
                held.append(handler)

    def release() -> None:
        while held:
            held.pop().release()

    os.register_at_fork(before=take, after_in_parent=release, after_in_child=held.clear)


def ends_of_forked_children() -> None:
    """A process that a job forks may go on into the worker, and watches its parent's sockets."""
    forked_children._ending_children = lambda job: contextlib.nullcontext()
    before_the_pool.end_forked_child = lambda pid: None
    poller.Poller.leave_to_parent = lambda self: None


def ends_with_the_body() -> None:
    """A process that a job forks goes on into Celery's tracer, and is ended after that."""
    task_hooks.call_body = lambda body, /, *args, **kwargs: body(*args, **kwargs)


def looks_at_bindings() -> None:
    """Passes look only at queues that a setting or a worker names."""
    reaper_of_app._sent_lists = lambda reaper: set()


def turns_of_their_own() -> None:
    """Scheduled jobs, and other dead workers, wait until the pass under way has ended."""
    tick = maintenance_of.OwnerMaintenance.tick

    def release_first(self: Any, now: float) -> None:
        interventions.release_due(self.owner)
        tick(self, now)

    maintenance_of.ReleaseThread.run = lambda self: None
    maintenance_of.OwnerMaintenance.tick = release_first
    maintenance_of.OwnerMaintenance._begin = lambda self, steps: self.add_suspects(finish(steps))


def copies() -> None:
    """A spawned pool process has an app in which nobody installed."""
    add = installation._add

    def without_fixup(app: Any) -> None:
        before = app.fixups
        add(app)
        app.fixups = before

    installation._add = without_fixup


def pauses() -> None:
    """A job that cannot run now goes back to its queue at once."""
    deliveries.Delivery.postpone = lambda self, seconds: self.requeue("back")


def return_spacing() -> None:
    """Jobs of a task that a worker does not know return to their queue all at once."""
    unknown_tasks.RETURN_SPACING = 0.0


def starting_workers() -> None:
    """A worker that has no queue yet is not expected to know a task."""
    unknown_tasks.is_starting = lambda other: False


def registered_names() -> None:
    """Counters name each task that a message names."""
    database.Database.counted_as = lambda self, task: task or ""


def stored_progress() -> None:
    """How far an announcement came is forgotten where it fails."""
    dead_set.DeadSetStore.store_progress = lambda self, job, progress: False


def awaited_notices() -> None:
    """Whatever calls itself the notice of a dead job announces it."""
    dead_set.DeadSetStore.awaits = lambda self, job, notice: True


def ids_of_notices() -> None:
    """Any notice announces a dead job, as long as its caller waits for one."""
    awaits = dead_set.DeadSetStore.awaits
    dead_set.DeadSetStore.awaits = lambda self, job, notice: awaits(self, job, job.notice)


def caps_of_their_own() -> None:
    """Messages that never ran count in the cap of the jobs that did."""
    cap_of = dead_set.cap_of
    dead_set.cap_of = lambda recovery, *place: cap_of(replace(recovery, never_ran=False), *place)


def reasons_without_values() -> None:
    """A reason has the text of the error that was raised."""
    for module in (unreadable_jobs, settling_of_jobs, unknown_tasks):
        module.kind_of = describe
    request_of_jobs.name_of_raised = message_of
