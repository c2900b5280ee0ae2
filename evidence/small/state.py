"""One state of the small world: the number of a keyspace, and what each process and the reaper
remember.

A process remembers a lease for each job that it has claimed. Its states are those of the package's
own lease (``celery_superfetch/owner/in_flight/lease.py``), and ``Processes`` changes them by the
package's own table, ``TRANSITIONS``. Two states that differ only in names are the same state:
``canonical`` returns the one that stands for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from celery_superfetch.model.job import claim_number
from celery_superfetch.owner.in_flight.lease import HELD, RUNS, State

from .keyspace import Keyspaces

#: How far the run of a claimed job has got, in the pool. ``ENDED``: its task has returned.
NOT_BEGUN, BEGUN, STEP_PUBLISHED, ENDED = "", "begun", "step published", "ended"
UNDER_WAY = BEGUN, STEP_PUBLISHED

#: Whether a process has a name (an owner) under which it claims. ``DECLARED_DEAD``: its last
#: heartbeat was answered "reaped", and it still has that name.
REGISTERED, UNREGISTERED, DECLARED_DEAD = "", "unregistered", "declared dead"

#: What is left to do of a reconcile (``Process.needs_reconcile``): nothing; to read the claims; or
#: first to requeue what has landed, and then to read the claims.
RECONCILED, CLAIMS_TO_READ, RECONCILE_DUE = 0, 1, 2

IDLE = ("idle",)  # a reaper that makes no pass


class ModelLease(NamedTuple):
    """A process's record of one claimed job: the fields of the package's ``Lease``, and the facts
    about its run that the pool and the consumer know."""

    owner: str
    id: str  # of the claim
    job: str
    state: State = State.FETCHED
    #: True or False, as of the last reply. None: a command that changes the note had no reply.
    has_waiting_note: bool | None = True
    has_history: bool = False  # ``Lease.counters``: an ack has to delete the history, too
    is_pending: bool = False  # the next send carries the command that its state requires
    ack_had_no_reply: bool = False
    move_had_no_reply: bool = False
    is_taken_away: bool = False  # it was announced that its ownership was lost
    is_cut_short: bool = False  # a stop is ending its run
    is_suspect: bool = False  # it was claimed from probation, for a solo run
    run: str = NOT_BEGUN
    is_channel_closed: bool = False  # of a lease that has not left: its consumer has forgotten it

    @property
    def may_start(self) -> bool:
        """Return whether the job waits for its start, as ``Lease.may_start``."""
        return self.state in HELD

    @property
    def runs(self) -> bool:
        """Return whether the pool has the job, as ``Lease.runs``."""
        return self.state in RUNS

    @property
    def is_under_way(self) -> bool:
        """Return whether the task's body runs at this moment."""
        return self.run in UNDER_WAY

    @property
    def command(self) -> str:
        """The command that the state requires, as ``PendingLeases._commands_for`` chooses it: empty
        if the server knows the state already, or the lease is not pending."""
        if not self.is_pending:
            return ""
        if self.state is State.RETURNING:
            return "requeue"
        if self.state is State.PARKING:
            return "park"
        if self.state is State.SETTLED:
            return "ack"
        if self.runs and self.has_waiting_note is not False:
            return "record start"
        if self.may_start and self.has_waiting_note is not True and not self.is_cut_short:
            return "put note back"
        return ""


def in_order(leases: Iterable[ModelLease]) -> tuple[ModelLease, ...]:
    """Sort leases by owner and claim."""
    return tuple(sorted(leases, key=lambda lease: (lease.owner, lease.id)))


class Process(NamedTuple):
    """A worker, or a plain consumer."""

    owner: str
    #: Its start permit lasts: no peer can have declared it dead because its heartbeats are missing.
    has_permit: bool = False
    is_stalled: bool = False  # frozen, or cut off from the server: it sends nothing
    is_stopping: bool = False  # it starts and claims no job any more
    name_state: str = UNREGISTERED
    has_landed: bool = False  # it has read that a job has landed; its next claim names it
    needs_reconcile: int = RECONCILED
    leases: tuple[ModelLease, ...] = ()
    recently_acked: tuple[str, ...] = ()  # claims whose acks a failover has undone

    @property
    def solo(self) -> ModelLease | None:
        """The suspect in its solo run, in which no other job starts."""
        return next((lease for lease in self.leases if lease.is_suspect), None)


class WorldState(NamedTuple):
    """All that can make a difference from here on."""

    keyspace: int
    replica: int | None  # the keyspace before the last write; None: no failover can come
    was_ack: bool  # the last write was an ack
    processes: tuple[Process, ...]
    reaper: tuple  # what it does next, and what it has read
    late_reads: tuple[str, ...]  # owners for which a blocking read may still let a job land
    harms_left: int
    ended_jobs: tuple[str, ...]  # jobs of which a run has ended
    crash_count: int = 0  # processes that a pill has killed and that no peer had declared dead
    failed_over: bool = False


def owner_name(slot: int, birth: int) -> str:
    """Return the name of the owner that was born as number ``birth`` in a process's place."""
    return f"p{slot}|1|{birth}"


def slot_of(owner: str) -> int:
    """Return the place of an owner's process among the processes."""
    return int(owner[1])


def next_name(state: WorldState, spaces: Keyspaces, slot: int) -> str:
    """Return a name that no owner of this place has had."""
    owners = known_owners(state, spaces)
    births = [int(owner.rpartition("|")[2]) for owner in owners if slot_of(owner) == slot]
    return owner_name(slot, max(births, default=-1) + 1)


def known_owners(state: WorldState, spaces: Keyspaces) -> set[str]:
    """Return the owners that are named anywhere."""
    found = [spaces.contents[at] for at in (state.keyspace, state.replica) if at is not None]
    owners = {o for one in found for o in (*one.owners, *one.tombstones, *one.marked, *one.claims)}
    owners |= {o for one in found for o in one.landed} | set(state.late_reads)
    owners |= {p.owner for p in state.processes} | set(state.reaper[1:2])
    return owners | {lease.owner for p in state.processes for lease in p.leases}


def known_numbers(state: WorldState, spaces: Keyspaces, owner: str) -> set[int]:
    """Return the numbers of an owner's claims that are named anywhere."""
    ids: set[str] = set()
    for at in (state.keyspace, state.replica):
        if at is not None:
            found = spaces.contents[at]
            ids |= found.claims.get(owner, {}).keys() | found.with_notes.get(owner, frozenset())
    for process in state.processes:
        ids.update(lease.id for lease in process.leases if lease.owner == owner)
        if process.owner == owner:
            ids.update(process.recently_acked)
    if state.reaper[1:2] == (owner,):
        for part in state.reaper[2:]:
            if isinstance(part, tuple):
                ids.update(one if isinstance(one, str) else one[0] for one in part)
    return {claim_number(id) for id in ids}


def canonical(state: WorldState, spaces: Keyspaces, processes_are_alike: bool) -> WorldState:
    """Return the state that stands for all that differ from this one in names alone: in the names
    of owners, the numbers of claims, and the order of the processes.

    Arguments:
        processes_are_alike: False: the processes stay in their order, so that a trace reads better.
    """
    owners = sorted(known_owners(state, spaces))
    shapes = [_shape(process) for process in state.processes]
    order = sorted(
        range(len(shapes)), key=lambda slot: shapes[slot] if processes_are_alike else slot
    )
    forgotten = {owner for owner in owners if _is_over(state, spaces, owner)}
    names, ids = [], []
    births = [0] * len(state.processes)
    for owner in owners:  # by their births
        slot = order.index(slot_of(owner))
        new = "" if owner in forgotten else owner_name(slot, births[slot])
        births[slot] += bool(new)
        if new != owner:
            names.append((owner, new))
        if new:
            numbers = sorted(known_numbers(state, spaces, owner))
            ids += [((owner, f"{n}:q"), f"{i}:q") for i, n in enumerate(numbers, 1) if n != i]
    scores = _scores(state, spaces)
    if not names and not ids and not scores:
        return state
    renamed, renumbered = dict(names), dict(ids)

    def name(owner: str) -> str:
        return renamed.get(owner, owner)

    def claim(owner: str, id: str) -> str:
        return renumbered.get((owner, id), id)

    # A keyspace has claims under the names that their owners have there.
    touched = tuple(
        (owner, name(owner))
        for owner in owners
        if owner in renamed or any(key[0] == owner for key, _ in ids)
    )
    changes = tuple(ids), tuple(scores.items())
    processes = tuple(
        p._replace(
            owner=name(p.owner),
            recently_acked=tuple(claim(p.owner, id) for id in p.recently_acked),
            leases=in_order(
                lease._replace(owner=name(lease.owner), id=claim(lease.owner, lease.id))
                for lease in p.leases
            ),
        )
        for p in (state.processes[slot] for slot in order)
    )
    reaper = state.reaper
    if len(reaper) > 1:
        kind, owner, *rest = reaper
        parts = []
        for part in rest:
            if isinstance(part, tuple):
                part = tuple(
                    claim(owner, one) if isinstance(one, str) else (claim(owner, one[0]), *one[1:])
                    for one in part
                )
            parts.append(part)
        reaper = (kind, name(owner), *parts)
    replica = state.replica
    return state._replace(
        keyspace=spaces.renamed(state.keyspace, touched, *changes),
        replica=None if replica is None else spaces.renamed(replica, touched, *changes),
        processes=processes,
        reaper=reaper,
        late_reads=tuple(sorted(map(name, state.late_reads))),
    )


@lru_cache(maxsize=100_000)
def _shape(process: Process) -> tuple[str, ...]:
    """Return what a process remembers, without names, in a form that can be sorted."""
    leases = (str((lease.state.name, *lease[2:3], *lease[4:])) for lease in process.leases)
    facts = process._replace(owner="", leases=())
    return (str(facts), *leases)


def _is_over(state: WorldState, spaces: Keyspaces, owner: str) -> bool:
    """Return whether a tombstone can make no difference any more. (The package forgets it after a
    minute, and its record after a day.)"""
    for at in (state.keyspace, state.replica):
        if at is not None:
            found = spaces.contents[at]
            if owner in found.owners or owner in found.landed or found.claims.get(owner):
                return False
    named = {*state.late_reads, *state.reaper[1:2], *(p.owner for p in state.processes)}
    leases = (lease for p in state.processes for lease in p.leases)
    return owner not in named and all(lease.owner != owner for lease in leases)


def _scores(state: WorldState, spaces: Keyspaces) -> dict[str, str]:
    """Return score -> score by which to replace it. A heartbeat writes 2 if the reaper has judged
    its owner and not marked it yet. Once that is over, 2 and 1 make no difference."""
    scores = {
        score
        for at in (state.keyspace, state.replica)
        if at is not None
        for score in spaces.contents[at].owners.values()
    }
    return {"2": "1"} if 2 in scores and state.reaper[0] != "mark" else {}
