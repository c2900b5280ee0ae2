"""A state of the small world: a keyspace by its number, and what the processes know."""

from __future__ import annotations

from typing import NamedTuple

from celery_superfetch.model.job import claim_number

from .keyspace import Keyspaces

#: How a process has a job. WAITS: claimed. RECORDED: said to run, and about to. RUNS. HANDED_ON: it
#: runs, and has handed on its step. ENDED: its ack is to be sent. TWICE: its ack's reply was lost.
#: BACK: it is to be given back.
WAITS, RECORDED, RUNS, HANDED_ON = "waits", "recorded", "runs", "handed on"
ENDED, TWICE, BACK = "ended", "twice", "back"
RUNNING = RUNS, HANDED_ON
#: What is left to do of a process that was taken for dead, or has just started.
LEARNED, UNLANDED = "learned", "to register"
IDLE = ("idle",)


class Has(NamedTuple):
    """A job of which a process knows."""

    owner: str
    id: str
    job: str
    how: str
    counted: bool  # its claim has told that it has counters


class Process(NamedTuple):
    owner: str
    heard: bool = False  # the start permit lasts: nobody can have taken it for silent
    stands: bool = False  # frozen, or cut off: it asks the server nothing
    left: str = UNLANDED
    landed: bool = False  # a blocking read has told it of a job
    doubt: int = 0  # 2: a reply was lost; 1: what landed is given back since
    alone: str = ""  # the claim of a suspect, beside which nothing starts
    jobs: tuple[Has, ...] = ()
    lately: tuple[str, ...] = ()  # claims that it settled just before a failover


class State(NamedTuple):
    at: int  # the keyspace
    replica: int | None  # the one before the last write
    acked: bool  # that write was an ack
    processes: tuple[Process, ...]
    reaper: tuple
    reads: tuple[str, ...]  # owners, blocked or dead, for which a read may still let a job land
    harms: int  # that may still happen
    ended: tuple[str, ...]  # jobs of which a run has ended
    crashes: int = 0  # of processes that a pill has ended, and nobody had taken for dead
    failed_over: bool = False


def name(slot: int, birth: int) -> str:
    return f"p{slot}|1|{birth}"


def slot_of(owner: str) -> int:
    return int(owner[1])


def next_birth(state: State, spaces: Keyspaces, slot: int) -> str:
    births = [int(o.rpartition("|")[2]) for o in known_owners(state, spaces) if slot_of(o) == slot]
    return name(slot, max(births, default=-1) + 1)


def known_owners(state: State, spaces: Keyspaces) -> set[str]:
    """Those that are named anywhere."""
    seen = [spaces.seen[at] for at in (state.at, state.replica) if at is not None]
    owners = {o for one in seen for o in (*one.owners, *one.reaped, *one.marked, *one.held)}
    owners |= {o for one in seen for o in one.landed} | set(state.reads)
    owners |= {p.owner for p in state.processes} | set(state.reaper[1:2])
    return owners | {has.owner for p in state.processes for has in p.jobs}


def known_numbers(state: State, spaces: Keyspaces, owner: str) -> set[int]:
    """Of its claims that are named anywhere."""
    ids: set[str] = set()
    for at in (state.at, state.replica):
        if at is not None:
            seen = spaces.seen[at]
            ids |= seen.held.get(owner, {}).keys() | seen.noted.get(owner, frozenset())
    for process in state.processes:
        ids.update(has.id for has in process.jobs if has.owner == owner)
        if process.owner == owner:
            ids.update(process.lately, filter(None, [process.alone]))
    if state.reaper[1:2] == (owner,):
        for part in state.reaper[2:]:
            if isinstance(part, tuple):
                ids.update(one if isinstance(one, str) else one[0] for one in part)
    return {claim_number(id) for id in ids}


def plain(state: State, spaces: Keyspaces, alike: bool) -> State:
    """The same state with the least names: what differs in nothing else is one state."""
    owners = sorted(known_owners(state, spaces))
    # Who knows less is the first, where the processes are alike; a trace is read better without.
    shapes = [p._replace(owner="", jobs=tuple(h[2:] for h in p.jobs)) for p in state.processes]
    order = sorted(range(len(shapes)), key=lambda slot: shapes[slot] if alike else slot)
    forgotten = {owner for owner in owners if _is_over(state, spaces, owner)}
    names, ids = [], []
    births = [0] * len(state.processes)
    for owner in owners:  # by their births
        slot = order.index(slot_of(owner))
        new = "" if owner in forgotten else name(slot, births[slot])
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

    def o(owner: str) -> str:
        return renamed.get(owner, owner)

    def c(owner: str, id: str) -> str:
        return renumbered.get((owner, id), id)

    # A keyspace knows claims by the names that their owners have there.
    touched = tuple(
        (owner, o(owner))
        for owner in owners
        if owner in renamed or any(k[0] == owner for k, _ in ids)
    )
    fixed = tuple(ids), tuple(scores.items())
    processes = tuple(
        p._replace(
            owner=o(p.owner),
            alone=c(p.owner, p.alone),
            lately=tuple(c(p.owner, id) for id in p.lately),
            jobs=tuple(sorted(h._replace(owner=o(h.owner), id=c(h.owner, h.id)) for h in p.jobs)),
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
                    c(owner, one) if isinstance(one, str) else (c(owner, one[0]), *one[1:])
                    for one in part
                )
            parts.append(part)
        reaper = (kind, o(owner), *parts)
    return state._replace(
        at=spaces.rewritten(state.at, touched, *fixed),
        replica=None if state.replica is None else spaces.rewritten(state.replica, touched, *fixed),
        processes=processes,
        reaper=reaper,
        reads=tuple(sorted(map(o, state.reads))),
    )


def _is_over(state: State, spaces: Keyspaces, owner: str) -> bool:
    """Whether nothing can come of a tombstone any more: it is forgotten after a minute, and its
    record after a day."""
    for at in (state.at, state.replica):
        if at is not None:
            seen = spaces.seen[at]
            if owner in seen.owners or owner in seen.landed or seen.held.get(owner):
                return False
    named = {owner} & {*state.reads, *state.reaper[1:2], *(p.owner for p in state.processes)}
    return not named and all(has.owner != owner for p in state.processes for has in p.jobs)


def _scores(state: State, spaces: Keyspaces) -> dict[str, str]:
    """1, but for the 2 of a heartbeat that came since the reaper looked, and before its mark."""
    told = {
        s
        for at in (state.at, state.replica)
        if at is not None
        for s in spaces.seen[at].owners.values()
    }
    return {"2": "1"} if 2 in told and state.reaper[0] != "mark" else {}
