"""The steps of a process: each call to the server, each change in its memory, each lost reply.

A process is a Celery worker; in the settings with ``plain``, it is a plain kombu consumer, which
does not report when it begins with a job. Its leases change by the package's table ``TRANSITIONS``
only, at the moments at which the package applies the same event:

- DELIVER, RESERVE: the fetch loop delivers a claimed job (``InFlight.delivered``, ``reserve``).
- START: the gate starts a job (``InFlight.start``). The start record is sent in the same step.
- WITHDRAW: the pool did not begin with it before its deadline (``withdraw_start``).
- CLOSE: the channel is closed (``InFlight.close``); the requeues are sent in later steps.
- REQUEUE: a job that waits is requeued (``InFlight.requeue``), or was claimed under a lost name.
- PARK, REFUSE: a job is due later (``add_park``); the server refuses to park it (``_on_parked``).
- ACK: the run has ended (``InFlight.ack``). The ack is sent in a later step.
- WITHDRAW, then CLOSE: a stop cuts a run short (``cut_short``). Until the pool has ended, the run
  may still end by itself, so that the job is acked.
- LEAVE: a reply says that the job has left, or is not there.

What is pending is sent in the order of ``PendingLeases._commands``: requeues, parks, waiting notes,
then acks and starts, and a claim only when nothing else is pending. Each command is a step of its
own. If its reply is lost, the server may have carried it out or not: both are tried.

Left out, to keep the number of states searchable: jobs that cannot run now and are postponed (they
leave as parked ones do); a lost pool process (``Settlement`` uses the reaper's scripts); the end of
a solo window, and suspects alongside others; batches in a worker (DELIVERED, then START); a reply
that is lost together with others; the pauses after a refusal; the blame of a worker that dies while
it stops. A process that was declared dead requeues its waiting jobs before it registers its new
name; the real one registers first. A plain consumer's run is not followed any more when its job has
left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

from celery_superfetch.owner.in_flight.lease import RUNS, TRANSITIONS, Event, State

from . import calls
from .contents import Contents
from .keyspace import Keyspaces
from .state import (
    BEGUN,
    CLAIMS_TO_READ,
    DECLARED_DEAD,
    ENDED,
    NOT_BEGUN,
    RECONCILE_DUE,
    RECONCILED,
    REGISTERED,
    STEP_PUBLISHED,
    UNREGISTERED,
    ModelLease,
    Process,
    WorldState,
    in_order,
    known_numbers,
    next_name,
)

LEASES_MAX = 2  # jobs that a process has at a time

#: The order in which the commands of pending leases are sent.
SEND_ORDER = {"requeue": 0, "park": 1, "put note back": 2, "ack": 3, "record start": 3}

WAITING = State.FETCHED, State.RESERVED
LEAVING = State.RETURNING, State.PARKING, State.SETTLED


class Harm(Enum):
    """A kind of harm. A setting allows some kinds, and a number of harms."""

    DEATH = "a process or the reaper is killed, or a process is stalled"
    LOST_REPLY = "a connection is lost before the reply to a command"
    REFUSAL = "the server refuses to park a job"
    CLOSE = "the channel of a process is closed"
    STOP = "a worker stops"
    FAILOVER = "a replica without the last write becomes the primary"


class Step(NamedTuple):
    """What happens next, the state after it, and what it violates (empty: nothing)."""

    what: str
    state: WorldState
    harm: Harm | None = None
    violation: str = ""


class ModelError(Exception):
    """The model applied an event where the package's table does not allow it."""


class Actor:
    """The interface of processes and the reaper to the keyspaces and the table of transitions.

    Arguments:
        pill: job B kills each process that runs it.
        publishes_step: job A publishes a step before it ends.
        plain: the processes are plain kombu consumers.
        without: the safety that is removed from the processes or the reaper.
        rows: rows of the table ``TRANSITIONS`` that are replaced: a removed safety, too.
    """

    def __init__(
        self,
        spaces: Keyspaces,
        *,
        pill: bool = False,
        publishes_step: bool = False,
        plain: bool = False,
        without: str = "",
        rows: Mapping[Event, Mapping[State, State]] | None = None,
    ) -> None:
        self.spaces, self.pill, self.plain = spaces, pill, plain
        self.publishes_step, self.without = publishes_step, without
        self.transitions = {**TRANSITIONS, **(rows or {})}
        self.kinds: frozenset[Harm] = frozenset()

    def contents(self, state: WorldState) -> Contents:
        """Return what the keyspace of a state contains."""
        return self.spaces.contents[state.keyspace]

    def allows(self, state: WorldState, harm: Harm) -> bool:
        """Return whether a harm of this kind may come now."""
        return state.harms_left > 0 and harm in self.kinds

    def call(
        self,
        state: WorldState,
        act: Callable[..., Any],
        *params: Any,
        number: int = 1,
        new_score: int = 1,
    ) -> tuple[WorldState, Any]:
        """Make a call to the server; return the state after it, and what the call returned.

        Arguments:
            number: of the next claim.
            new_score: what a heartbeat writes.
        """
        self.spaces.lists.number, self.spaces.new_score = number, new_score
        at, reply = self.spaces.call(state.keyspace, act, *params)
        if at != state.keyspace:
            replica = None if state.failed_over else state.keyspace
            state = state._replace(keyspace=at, replica=replica, was_ack=act is calls.ack)
        return state, reply


class Processes(Actor):
    """The steps of the processes."""

    def process_steps(self, state: WorldState, i: int) -> Iterator[Step]:
        """Yield all steps that process ``i`` can make next."""
        p = state.processes[i]
        yield from self._run_steps(state, i, p)
        if p.is_stalled:
            yield Step(f"p{i} reaches the server again", self._put(state, i, is_stalled=False))
            if p.has_permit:
                yield Step(f"the start permit of p{i} ends", self._put(state, i, has_permit=False))
            return
        if p.name_state == REGISTERED:
            yield from self._owner_steps(state, i, p)
        else:
            yield from self._new_name_steps(state, i, p)
        for lease in p.leases:
            yield from self._lease_steps(state, i, p, lease)
        yield from self._send_steps(state, i, p)
        if p.leases and p.name_state == REGISTERED:
            # Before the run of a solo pool has ended, its thread cannot close the channel. In other
            # pools a run is cut short only when it is over.
            is_blocked = any(lease.is_cut_short and lease.is_under_way for lease in p.leases)
            if self.allows(state, Harm.CLOSE) and not is_blocked:
                yield self._close(state, i, p)
            if self.allows(state, Harm.STOP) and not p.is_stopping:
                yield self._stop(state, i, p)
        if p.is_stopping:
            yield from self._stopping_steps(state, i, p)

    def _put(self, state: WorldState, i: int, **changes: Any) -> WorldState:
        """Change what a process remembers."""
        processes = list(state.processes)
        processes[i] = processes[i]._replace(**changes)
        return state._replace(processes=tuple(processes))

    def _put_lease(
        self,
        state: WorldState,
        i: int,
        old: ModelLease | None,
        new: ModelLease | None,
        **changes: Any,
    ) -> WorldState:
        """Replace a lease of a process. A lease that is ``GONE`` is removed."""
        leases = [lease for lease in state.processes[i].leases if lease != old]
        if new is not None and new.state is not State.GONE:
            leases.append(_normal(new))
        return self._put(state, i, leases=in_order(leases), **changes)

    def _apply(
        self, lease: ModelLease, event: Event, *, may_change_nothing: bool = False, **changes: Any
    ) -> ModelLease:
        """Apply an event by the table, as ``Leases.apply`` does; with it, change other fields. A
        lease that is to leave from now on is pending.

        Raises ModelError if the package's table has no such transition, unless the package, too,
        applies the event to leases in any state (``may_change_nothing``).
        """
        if lease.state not in TRANSITIONS[event] and not may_change_nothing:
            raise ModelError(f"{event.name} of a lease that is {lease.state.name}")
        after = self.transitions[event].get(lease.state)
        if after is None:
            return lease
        if after in LEAVING:
            changes["is_pending"] = True
        return _normal(lease._replace(state=after, **changes))

    # -- the runs, in the pool

    def _run_steps(self, state: WorldState, i: int, p: Process) -> Iterator[Step]:
        """Yield what the pool may do: begin with a job, or not begin with it, and end its run. Or
        the job kills the process."""
        for lease in p.leases:
            waits_for_pool = lease.runs or (self.plain and lease.state is State.DELIVERED)
            if waits_for_pool and lease.run == NOT_BEGUN:
                if self._may_begin(p, lease):
                    yield self._begin(state, i, lease)
                if lease.runs and not (self._may_begin(p, lease) and Harm.CLOSE not in self.kinds):
                    yield self._withdraw(state, i, lease)
            if lease.run == BEGUN and self.pill and lease.job == "B":
                crashes = state.crash_count + (lease.owner not in self.contents(state).marked)
                after = self.end_process(state, i)._replace(crash_count=crashes)
                yield Step(f"job B kills p{i}", after)
            elif lease.is_under_way and (
                lease.run == STEP_PUBLISHED or not self._publishes_step(lease)
            ):
                ended = tuple(sorted({*state.ended_jobs, lease.job}))
                after = self._end_run(state, i, lease)._replace(ended_jobs=ended)
                yield Step(f"{lease.job} ends in p{i}", after)

    def _may_begin(self, p: Process, lease: ModelLease) -> bool:
        """Return whether the pool may begin with a job that it has: its deadline has not passed. A
        plain consumer may begin at any time."""
        if self.plain:
            return True
        if self.without == "requeue after death":
            return p.has_permit or p.name_state != REGISTERED
        is_of_this_name = p.name_state == REGISTERED and lease.owner == p.owner
        return is_of_this_name and (p.has_permit or self.without == "permit")

    def _begin(self, state: WorldState, i: int, lease: ModelLease) -> Step:
        """Begin with a job, in the pool."""
        found, violation = self.contents(state), ""
        if not self.plain and not state.failed_over:
            if lease.owner in found.marked:
                violation = f"p{i}, which was declared dead, begins with {lease.job}"
            elif lease.job in state.ended_jobs and not found.was_recovered(lease.job):
                violation = f"{lease.job} runs again although its run has ended: no worker has died"
        after = state
        if self.without == "late ack":
            params = lease.owner, lease.id, lease.job, lease.has_history
            after, _ = self.call(state, calls.ack, *params)
        after = self._put_lease(after, i, lease, lease._replace(run=BEGUN))
        return Step(f"{lease.job} begins in p{i}", after, violation=violation)

    def _end_run(self, state: WorldState, i: int, lease: ModelLease) -> WorldState:
        """Ack a job, whose run has ended. The ack is pending."""
        if self.without == "late ack":
            return self._put_lease(state, i, lease, None)
        # A plain consumer's job may be on its way back to its queue (RETURNING).
        ended = self._apply(lease._replace(run=ENDED), Event.ACK)
        return self._put_lease(state, i, lease, ended)

    def _withdraw(self, state: WorldState, i: int, lease: ModelLease) -> Step:
        """Withdraw a start: the job's waiting note is to be put back."""
        withdrawn = self._apply(lease, Event.WITHDRAW)
        withdrawn = withdrawn._replace(is_pending=True)
        what = f"the pool of p{i} does not begin with {lease.job} (WITHDRAW)"
        return Step(what, self._put_lease(state, i, lease, withdrawn))

    def _publishes_step(self, lease: ModelLease) -> bool:
        return self.publishes_step and lease.job == "A"

    def end_process(self, state: WorldState, i: int) -> WorldState:
        """End a process with all that it remembers. Its supervisor starts another one."""
        processes = list(state.processes)
        processes[i] = Process(next_name(state, self.spaces, i))
        return state._replace(processes=tuple(processes))

    # -- its stop

    def _stop(self, state: WorldState, i: int, p: Process) -> Step:
        """Begin a stop: no job starts from now on, and those that wait are requeued
        (``QoS.requeue_waiting``). The requeues are sent next."""
        after = state
        if p.has_landed:
            after, _ = self.call(state, calls.return_landed, p.owner)
        leases = [
            self._apply(lease, Event.REQUEUE) if lease.state in WAITING else lease
            for lease in p.leases
        ]
        after = self._put(after, i, is_stopping=True, leases=in_order(leases), has_landed=False)
        return Step(f"p{i} begins to stop", after, Harm.STOP)

    def _stopping_steps(self, state: WorldState, i: int, p: Process) -> Iterator[Step]:
        """Cut the runs short; then close the channel; then leave."""
        for lease in p.leases:
            if lease.runs and lease.is_under_way:
                cut = self._apply(lease, Event.WITHDRAW, is_cut_short=True)
                if lease.state is State.DETACHED:  # its pool process has ended
                    cut = cut._replace(run=NOT_BEGUN)
                what = f"the stop of p{i} cuts {lease.job} short (WITHDRAW)"
                yield Step(what, self._put_lease(state, i, lease, cut))
        if p.leases and not any(lease.runs or lease.command for lease in p.leases):
            over = tuple(lease._replace(run=NOT_BEGUN) for lease in p.leases)
            step = self._close(self._put(state, i, leases=over), i, p._replace(leases=over))
            yield step._replace(what=f"the pool of p{i} has ended; {step.what}", harm=None)
        if not p.leases and p.name_state == REGISTERED and not p.needs_reconcile:
            may_land = p.owner in state.late_reads and self.without != "tombstone"
            after, _ = self.call(state, calls.leave, p.owner, may_land)
            yield Step(f"p{i} leaves", self.end_process(after, i))

    # -- its name

    def _new_name_steps(self, state: WorldState, i: int, p: Process) -> Iterator[Step]:
        """Register a process; or give up the name under which it was declared dead."""
        if p.name_state == UNREGISTERED:
            after, status = self.call(state, calls.register, p.owner)
            if status == "ok":
                after = self._put(after, i, name_state=REGISTERED, has_permit=True)
                yield Step(f"p{i} registers", after)
            return
        waits = any(lease.state in (*WAITING, State.RETURNING) for lease in p.leases)
        if not waits or self.without == "requeue after death":
            after, _ = self.call(state, calls.return_landed, p.owner)
            name = next_name(after, self.spaces, i)
            after = self._put(after, i, name_state=UNREGISTERED, has_landed=False, owner=name)
            yield Step(f"p{i} requeues what has landed, and takes a new name", after)

    def _heartbeat(self, state: WorldState, i: int, p: Process) -> Step:
        """Send a heartbeat. The answer "reaped" ends the start permit and the name."""
        is_judged = state.reaper[:2] == ("mark", p.owner)
        after, status = self.call(state, calls.heartbeat, p.owner, new_score=1 + is_judged)
        if status == "ok":
            after = self._put(after, i, has_permit=True)
        elif status == "reaped":
            after = self._put(
                after,
                i,
                has_permit=False,
                name_state=DECLARED_DEAD,
                needs_reconcile=RECONCILED,
                leases=in_order(map(self._lose, p.leases)),
            )
        else:
            after = self._put(after, i, has_permit=False, name_state=UNREGISTERED)
        return Step(f"p{i} sends a heartbeat: {status}", after)

    def _lose(self, lease: ModelLease) -> ModelLease:
        """Change a lease as ``InFlight.lose_all`` does, when its owner was declared dead."""
        if self.without == "requeue after death":
            return lease
        if lease.state is State.RESERVED:
            return self._apply(lease, Event.REQUEUE)
        return lease._replace(is_taken_away=True) if lease.runs else lease

    # -- while it is registered

    def _owner_steps(self, state: WorldState, i: int, p: Process) -> Iterator[Step]:
        """Yield a heartbeat, a reconcile that is due, and the ways in which jobs come."""
        yield self._heartbeat(state, i, p)
        is_all_sent = not any(lease.command for lease in p.leases)
        if p.needs_reconcile:
            if p.has_permit and is_all_sent:
                yield self._reconcile(state, i, p)
            return
        if p.solo is not None or p.is_stopping:
            return
        if p.has_landed:
            after, _ = self.call(state, calls.return_landed, p.owner)
            after = self._put(after, i, has_landed=False)
            yield Step(f"p{i} requeues what has landed", after)
        if len(p.leases) >= LEASES_MAX:
            return
        if is_all_sent:
            yield from self._claim_steps(state, i, p)
        queue = self.contents(state).queue
        if queue and p.has_permit and not p.has_landed and p.owner not in state.late_reads:
            after, _ = self.call(state, calls.land, p.owner)
            yield Step(f"{queue[-1]} lands for p{i}", self._put(after, i, has_landed=True))
            yield from self._lost_reply(state, after, i, f"p{i}'s blocking read")

    def _claim_steps(self, state: WorldState, i: int, p: Process) -> Iterator[Step]:
        """Yield the claims: of a job that will wait, of one that starts at once (the claim records
        its start), and of a suspect for its solo run."""
        found = self.contents(state)
        numbers = known_numbers(state, self.spaces, p.owner)
        number = 1 if self.without == "claim numbers" else max(numbers, default=0) + 1
        names_landed = p.has_landed and self.without != "landed"
        for starts in (0,) if self.plain else (0, 1):
            params = p.owner, names_landed, starts
            after, claimed = self.call(state, calls.claim, *params, number=number)
            if not claimed:
                continue
            id, job, has_history = claimed
            after = self._put(after, i, has_landed=False)
            lease = ModelLease(
                p.owner, id, job, has_waiting_note=not starts, has_history=has_history
            )
            how = " and records its start" if starts else ""
            yield Step(f"p{i} claims {job}{how}", self._put_lease(after, i, None, lease))
            if not self.contents(state).landed:
                yield from self._lost_reply(None, after, i, f"p{i}'s claim of {job}")
        # The fetch loop claims a suspect only if all claimed jobs are delivered and none runs
        # (``Probation.act``). The waiting notes of the others are on the server: all was sent.
        is_idle = not any(lease.runs or lease.state is State.FETCHED for lease in p.leases)
        if found.probation and is_idle and not self.plain:
            after, claimed = self.call(state, calls.claim_alone, p.owner, number=number)
            if claimed:
                id, job, has_history = claimed
                lease = ModelLease(
                    p.owner,
                    id,
                    job,
                    has_waiting_note=False,
                    has_history=has_history,
                    is_suspect=True,
                )
                alone = self._put_lease(after, i, None, lease)
                yield Step(f"p{i} claims the suspect {job}", alone)
                yield from self._lost_reply(None, after, i, f"p{i}'s claim of the suspect {job}")

    def _lost_reply(
        self,
        not_carried_out: WorldState | None,
        carried_out: WorldState,
        i: int,
        what: str,
    ) -> Iterator[Step]:
        """Yield the losses of a reply: the server has carried the command out, or (unless that
        changes nothing) it has not. A reconcile is due in both cases."""
        if not self.allows(carried_out, Harm.LOST_REPLY):
            return
        due = RECONCILED if self.without == "reconcile" else RECONCILE_DUE
        after = self._put(carried_out, i, needs_reconcile=due)
        yield Step(f"the reply to {what} is lost", after, Harm.LOST_REPLY)
        if not_carried_out is not None:
            after = self._put(not_carried_out, i, needs_reconcile=due)
            yield Step(f"{what} is lost on its way", after, Harm.LOST_REPLY)

    def _lost_reply_about(
        self,
        state: WorldState,
        after: WorldState,
        i: int,
        old: ModelLease,
        lost: ModelLease,
        what: str,
    ) -> Iterator[Step]:
        """Yield the losses of the reply to a command about one job.

        Arguments:
            state, after: without the command, and with it.
            old: the job's lease before the command; ``lost``: after its reply was lost.
            what: the command, in words.
        """
        not_carried_out = self._put_lease(state, i, old, lost)
        carried_out = self._put_lease(after, i, old, lost)
        yield from self._lost_reply(not_carried_out, carried_out, i, what)

    def _reconcile(self, state: WorldState, i: int, p: Process) -> Step:
        """Make one of the two calls of a reconcile, as ``LostClaims.reconcile``."""
        if p.needs_reconcile == RECONCILE_DUE:
            after, _ = self.call(state, calls.return_landed, p.owner)
            after = self._put(after, i, needs_reconcile=CLAIMS_TO_READ, has_landed=False)
            return Step(f"p{i} begins a reconcile: requeues what may have landed", after)
        found = self.contents(state)
        claims, running = found.claims.get(p.owner, {}), found.running.get(p.owner, frozenset())
        leases = []
        for lease in p.leases:
            if lease.owner == p.owner and lease.id in claims.keys() - running and lease.runs:
                lease = lease._replace(has_waiting_note=True, is_pending=True)
            leases.append(lease)
        known = {lease.id for lease in p.leases if lease.owner == p.owner}
        for id, job in claims.items():
            if id in known:
                continue
            lease = ModelLease(p.owner, id, job, has_history=True)
            if id in p.recently_acked:
                leases.append(self._apply(lease._replace(run=ENDED), Event.ACK))
            else:
                leases.append(self._apply(lease, Event.REQUEUE))
        after = self._put(
            state, i, needs_reconcile=RECONCILED, leases=in_order(leases), recently_acked=()
        )
        return Step(f"p{i} reads its claims, and requeues those without a lease", after)

    def _close(self, state: WorldState, i: int, p: Process) -> Step:
        """Close the channel: CLOSE applies to all leases (``QoS.restore_unacked``). What has landed
        is requeued; the requeues of the jobs are sent next. The worker opens another channel."""
        after = state
        if p.has_landed:
            after, _ = self.call(state, calls.return_landed, p.owner)
        leases = []
        for lease in p.leases:
            lease = self._apply(lease, Event.CLOSE, may_change_nothing=True)
            if lease.state is not State.GONE:
                leases.append(_normal(lease._replace(is_channel_closed=True)))
        after = self._put(after, i, leases=in_order(leases), has_landed=False)
        return Step(f"the channel of p{i} is closed (CLOSE)", after, Harm.CLOSE)

    # -- with one lease

    def _lease_steps(
        self, state: WorldState, i: int, p: Process, lease: ModelLease
    ) -> Iterator[Step]:
        """Yield what may happen to one job before its run, and the step that its run publishes."""
        is_former = p.name_state != REGISTERED or lease.owner != p.owner
        if lease.state is State.FETCHED and not is_former:
            yield from self._deliver_steps(state, i, lease)
        if lease.state is State.RESERVED and not is_former:
            yield from self._start_steps(state, i, p, lease)
        waits = (lease.state is State.RESERVED and not lease.is_cut_short) or (
            lease.state is State.DELIVERED and lease.run == NOT_BEGUN
        )
        if lease.is_cut_short and self.without == "cut short":
            waits = lease.state is State.RESERVED
        if waits or (lease.state is State.FETCHED and is_former):
            if self.without == "requeue after death" and is_former:
                return
            returning = self._apply(lease, Event.REQUEUE)
            yield from self._requeue_steps(state, i, p, lease, returning)
        if lease.runs and lease.run == BEGUN and self._publishes_step(lease):
            after, reply = self.call(state, calls.publish_step, lease.owner, lease.id)
            if reply < 0:
                # A process without the claim publishes nothing, and its run does not count.
                ended = self._apply(lease._replace(run=ENDED), Event.ACK)
                after, how = self._put_lease(after, i, lease, ended), ": its claim is gone"
            else:
                published = lease._replace(run=STEP_PUBLISHED)
                after, how = self._put_lease(after, i, lease, published), ""
            yield Step(f"p{i} publishes the step of {lease.job}{how}", after)
            if self.allows(state, Harm.LOST_REPLY):
                lost, _ = self.call(state, calls.publish_step, lease.owner, lease.id)
                yield Step(f"the reply to p{i}'s step is lost", lost, Harm.LOST_REPLY)

    def _deliver_steps(self, state: WorldState, i: int, lease: ModelLease) -> Iterator[Step]:
        """Deliver a fetched job, or park it because it is due later (A alone)."""
        event = Event.DELIVER if self.plain else Event.RESERVE
        # If the claim recorded its start and it does not start now, its note is to be put back.
        delivered = self._apply(lease, event)._replace(is_pending=True)
        after = self._put_lease(state, i, lease, delivered)
        yield Step(f"p{i} delivers {lease.job} ({event.name})", after)
        if lease.job == "A" and not self.plain:
            parking = self._apply(lease, Event.PARK)
            after = self._put_lease(state, i, lease, parking)
            yield Step(f"p{i} is to park {lease.job} (PARK)", after)

    def _start_steps(
        self, state: WorldState, i: int, p: Process, lease: ModelLease
    ) -> Iterator[Step]:
        """Start a job, as ``InFlight.start``: with its start record, unless the claim made one."""
        others = [other for other in p.leases if other != lease]
        is_free = not any(other.runs for other in others) if lease.is_suspect else not p.solo
        has_permit = p.has_permit or self.without == "permit"
        if not (is_free and has_permit) or p.needs_reconcile or p.is_stopping:
            return
        started = self._apply(lease, Event.START)
        if lease.has_waiting_note is False or self.without == "start record":
            started = started._replace(has_waiting_note=False)
            what = f"p{i} starts {lease.job} (START)"
            yield Step(what, self._put_lease(state, i, lease, started))
            return
        if any(SEND_ORDER.get(other.command, 3) < SEND_ORDER["record start"] for other in others):
            return  # the same send carries these first
        after, _ = self.call(state, calls.record_start, lease.owner, lease.id, lease.job)
        recorded = started._replace(has_waiting_note=False)
        what = f"p{i} starts {lease.job}, and records that (START)"
        yield Step(what, self._put_lease(after, i, lease, recorded))
        # The reply is read later: the job may begin meanwhile.
        unread = started._replace(has_waiting_note=None, is_pending=True)
        what = f"p{i}'s start record of {lease.job}"
        yield from self._lost_reply_about(state, after, i, lease, unread, what)
        # The send itself fails: the start is withdrawn at once.
        withdrawn = self._apply(unread, Event.WITHDRAW)
        yield from self._lost_reply(
            None,
            self._put_lease(after, i, lease, withdrawn),
            i,
            f"p{i}'s start record of {lease.job}, which it withdraws,",
        )

    # -- what is sent

    def _send_steps(self, state: WorldState, i: int, p: Process) -> Iterator[Step]:
        """Send the first commands of the pending leases."""
        pending = [lease for lease in p.leases if lease.command]
        first = min((SEND_ORDER[lease.command] for lease in pending), default=0)
        for lease in pending:
            if SEND_ORDER[lease.command] == first:
                send = getattr(self, f"_{lease.command.replace(' ', '_')}_steps")
                yield from send(state, i, p, lease, lease._replace(is_pending=False))

    def _requeue_steps(
        self, state: WorldState, i: int, p: Process, old: ModelLease, lease: ModelLease
    ) -> Iterator[Step]:
        """Send a requeue; ``old`` is the lease as it is before this step."""
        if lease.state is not State.RETURNING:  # the event that requeues it is changed: a mutant
            yield Step(f"p{i} is to requeue {lease.job}", self._put_lease(state, i, old, lease))
            return
        params = lease.owner, lease.id, lease.job, lease.is_cut_short
        after, count = self.call(state, calls.requeue, *params)
        violation = ""
        may_run_twice = self.plain or lease.owner in self.contents(state).marked
        if count and lease.run == ENDED:
            violation = f"p{i} requeues {lease.job}, whose run has ended: it runs again"
        elif count and lease.is_under_way and not may_run_twice:
            violation = f"p{i} requeues {lease.job}, which it runs"
        gone = self._apply(lease, Event.LEAVE)
        how = "" if count else ", which is gone"
        what = f"p{i} requeues {lease.job}{how}"
        yield Step(what, self._put_lease(after, i, old, gone), violation=violation)
        if p.name_state == REGISTERED:
            lost = lease._replace(is_pending=True, move_had_no_reply=True)
            what = f"p{i}'s requeue of {lease.job}"
            yield from self._lost_reply_about(state, after, i, old, lost, what)

    def _park_steps(
        self, state: WorldState, i: int, p: Process, old: ModelLease, lease: ModelLease
    ) -> Iterator[Step]:
        after, _ = self.call(state, calls.park, lease.owner, lease.id, lease.job)
        gone = self._apply(lease, Event.LEAVE)
        yield Step(f"p{i} parks {lease.job}", self._put_lease(after, i, old, gone))
        if p.name_state == REGISTERED:
            lost = lease._replace(is_pending=True, move_had_no_reply=True)
            what = f"p{i}'s parking of {lease.job}"
            yield from self._lost_reply_about(state, after, i, old, lost, what)
        if self.allows(state, Harm.REFUSAL):
            refused = self._apply(lease, Event.REFUSE)
            what = f"the server refuses to park {lease.job} for p{i} (REFUSE)"
            yield Step(what, self._put_lease(state, i, old, refused), Harm.REFUSAL)

    def _put_note_back_steps(
        self, state: WorldState, i: int, p: Process, old: ModelLease, lease: ModelLease
    ) -> Iterator[Step]:
        after, _ = self.call(state, calls.put_note_back, lease.owner, lease.id, lease.job)
        noted = lease._replace(has_waiting_note=True)
        what = f"p{i} puts the waiting note of {lease.job} back"
        yield from self._note_steps(state, after, i, p, old, noted, what)

    def _record_start_steps(
        self, state: WorldState, i: int, p: Process, old: ModelLease, lease: ModelLease
    ) -> Iterator[Step]:
        after, _ = self.call(state, calls.record_start, lease.owner, lease.id, lease.job)
        recorded = lease._replace(has_waiting_note=False)
        what = f"p{i} records the start of {lease.job} again"
        yield from self._note_steps(state, after, i, p, old, recorded, what)

    def _note_steps(
        self,
        state: WorldState,
        after: WorldState,
        i: int,
        p: Process,
        old: ModelLease,
        new: ModelLease,
        what: str,
    ) -> Iterator[Step]:
        yield Step(what, self._put_lease(after, i, old, new))
        if p.name_state == REGISTERED:
            lost = new._replace(is_pending=True, has_waiting_note=None)
            what = f"p{i}'s change of the note of {new.job}"
            yield from self._lost_reply_about(state, after, i, old, lost, what)

    def _ack_steps(
        self, state: WorldState, i: int, p: Process, old: ModelLease, lease: ModelLease
    ) -> Iterator[Step]:
        job, owner, id = lease.job, lease.owner, lease.id
        found = self.contents(state)
        job_before = found.claims.get(owner, {}).get(id)
        after, was_there = self.call(state, calls.ack, owner, id, job, lease.has_history)
        violation = ""
        if was_there and job_before != job:
            violation = f"the ack of {job} has removed {job_before}"
        elif id in self.contents(after).claims.get(owner, {}):
            violation = f"the ack of {job} has left it in the private list"
        elif was_there != (job_before is not None):
            violation = f"the ack of {job} says that it was {'there' if was_there else 'gone'}"
        is_announced = not (was_there or lease.ack_had_no_reply or lease.is_taken_away)
        is_explained = owner in found.marked or lease.move_had_no_reply or state.failed_over
        if is_announced and not is_explained and not violation:
            violation = f"p{i} announces that it lost {job}, and it was not declared dead"
        gone = self._apply(lease, Event.LEAVE)
        how = "" if was_there else ", which is gone"
        yield Step(f"p{i} acks {job}{how}", self._put_lease(after, i, old, gone), None, violation)
        if p.name_state == REGISTERED:
            lost = lease._replace(is_pending=True, ack_had_no_reply=True)
            if self.without == "second ack":
                lost = self._apply(lease, Event.LEAVE)
            what = f"p{i}'s ack of {job}"
            yield from self._lost_reply_about(state, after, i, old, lost, what)


def _normal(lease: ModelLease) -> ModelLease:
    """Return the lease without what makes no difference in its state, so that fewer states
    differ."""
    if lease.is_pending and not lease.command:
        lease = lease._replace(is_pending=False)
    if lease.state in LEAVING:
        lease = lease._replace(is_channel_closed=False, has_waiting_note=None)
    if lease.state is not State.SETTLED:
        lease = lease._replace(ack_had_no_reply=False)
    return lease


def is_sent(lease: ModelLease) -> bool:
    """Return whether the server knows the state of a lease, or the next send reports it."""
    if lease.is_pending:
        return True
    if lease.state in LEAVING:
        return False
    if lease.state in RUNS:
        return lease.has_waiting_note is False
    return lease.state is State.FETCHED or lease.has_waiting_note is True or lease.is_cut_short
