"""The safeties, each removed once: from a script's text, from what the processes and the reaper do,
or from the table of a lease's transitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from celery_superfetch.owner.in_flight.lease import TRANSITIONS, Event, State

from .changed import Changes
from .processes import Harm

DEATH, LOST_REPLY = frozenset({Harm.DEATH}), frozenset({Harm.LOST_REPLY})
REFUSAL, STOP = frozenset({Harm.REFUSAL}), frozenset({Harm.STOP})
CLOSE = frozenset({Harm.CLOSE})
FAILOVER = frozenset({Harm.FAILOVER})


class Mutant(NamedTuple):
    """A world in which one safety is missing, with the setting in which that shows."""

    what: str
    script: str = ""  # whose text is changed
    changes: Changes = ()
    without: str = ""  # a safety that the processes or the reaper leave out
    rows: Mapping[Event, Mapping[State, State]] = {}  # of the table, which are replaced
    jobs: str = "A"  # on the queue at the beginning
    pill: bool = False
    harms: int = 1
    kinds: frozenset[Harm] = DEATH  # of the harms
    strike_limit: int = 0  # 0: that of the setting
    publishes_step: bool = False
    plain: bool = False


def _in(script: str, what: str, *changes: tuple[str, str], **setting: Any) -> Mutant:
    """Return a mutant of a script."""
    return Mutant(f"{script}.lua: {what}", script, changes, **setting)


def _row(event: Event, before: State, after: State | None, what: str, **setting: Any) -> Mutant:
    """Return a mutant in which an event leads from ``before`` to another state; None: the event
    changes nothing there."""
    row = {state: to for state, to in TRANSITIONS[event].items() if state is not before}
    if after is not None:
        row[before] = after
    result = "changes nothing" if after is None else f"makes it {after.name}"
    name = f"{event.name} of a job that is {before.name} {result}: {what}"
    return Mutant(name, rows={event: row}, **setting)


LEAVES = "redis.call('HDEL', private, id, 'w' .. id, 's' .. id)"

MUTANTS = [
    _in(
        "mark",
        "it marks an owner that has sent a heartbeat since the verdict",
        ("if math.modf(score) ~= seen then return false end", ""),
    ),
    Mutant(
        "an owner is declared dead before its start permit has ended", without="watched staleness"
    ),
    _in(
        "heartbeat",
        "an owner that was declared dead may continue",
        ("if state == 'reaped' then return {'reaped'} end", ""),
        ("if redis.call('ZSCORE', reaped, owner) then return {'reaped'} end", ""),
    ),
    _in(
        "claim",
        "an owner that is not registered may claim",
        ("if not redis.call('ZSCORE', owners, owner) then return false end", ""),
    ),
    _in(
        "claim",
        "the job stays on its queue",
        ("redis.pcall('RPOP', source, ...)", "{redis.call('LINDEX', source, -1) or nil}"),
    ),
    _in(
        "claim",
        "there is no waiting note",
        ("\n    fields[#fields + 1], fields[#fields + 2] = 'w' .. id, ''", ""),
    ),
    _in("ack", "the job stays", (LEAVES, "redis.call('HEXISTS', private, id)"), harms=0),
    _in("ack", "the history stays", ("redis.call('DEL', counters)", ""), harms=0),
    _in("requeue", "the job stays in the private list", (LEAVES, "")),
    _in("requeue", "the job does not arrive", ("redis.call(push, queue, payload)", "")),
    _in("park", "the job stays in the private list", (LEAVES, "")),
    _in(
        "park",
        "the queue list is not added to the index of parked jobs",
        ("redis.call('ZADD', index, 'LT', due, queue_list)", ""),
    ),
    _in("release", "the job stays parked", ("redis.call('ZREM', parked_of .. name, member)", "")),
    _in(
        "return_landed",
        "the job does not arrive",
        ("redis.pcall('LMOVE', landing, queue, 'LEFT', 'RIGHT')", "redis.pcall('LPOP', landing)"),
    ),
    _in("recover", "the job stays in the private list", (LEAVES, "")),
    _in(
        "recover",
        "it recovers a job that has left meanwhile",
        ("elseif not payloads[i] then", "elseif false then"),
    ),
    _in(
        "recover",
        "it recovers the jobs of an owner that is not marked",
        ("if unmarked then", "if false then"),
        harms=2,
        kinds=DEATH | FAILOVER,
    ),
    _in(
        "recover",
        "strikes are not counted",
        ("'strikes', strikes,", "'strikes', 0,"),
        jobs="B",
        pill=True,
        harms=0,
    ),
    _in(
        "recover",
        "the queue list is not added to the index of probation",
        ("redis.call('SADD', on_probation, queue_list)", ""),
        jobs="AB",
        pill=True,
        harms=0,
    ),
    _in(
        "probation",
        "a suspect gets a waiting note",
        ("HSET', private, id, payload)", "HSET', private, id, payload, 'w' .. id, '')"),
        jobs="AB",
        pill=True,
        harms=0,
    ),
    _in(
        "kill",
        "the job stays in the private list",
        ("redis.call('HDEL', private, claim, 'w' .. claim, 's' .. claim)", ""),
        jobs="B",
        pill=True,
        harms=0,
    ),
    _in(
        "claim",
        "the steps note of the earlier run is forgotten",
        ("counts ~= 0 and counts[5] then", "false then"),
        publishes_step=True,
    ),
    _in(
        "step",
        "a process without the claim may publish",
        ("if redis.call('HEXISTS', private, id) == 0 then return -1 end", ""),
        publishes_step=True,
    ),
    _in(
        "step",
        "a step that is in the steps note is published again",
        ("if here >= tonumber(low) and here <= tonumber(high) then", "if false then"),
        publishes_step=True,
        kinds=LOST_REPLY,
    ),
    _in(
        "step",
        "the steps note is not written",
        ("redis.call('HSET', private, 's' .. id, note)", ""),
        publishes_step=True,
        kinds=LOST_REPLY,
    ),
    _in(
        "step",
        "the step does not arrive",
        ("redis.call('LPUSH', queue, message)", ""),
        publishes_step=True,
        harms=0,
    ),
    _in(
        "recover",
        "the steps note of the earlier run is forgotten",
        ("if steps[i] then redis.call('HSET', history, 'steps', steps[i]) end", ""),
        publishes_step=True,
    ),
    Mutant("a job starts without a permit", without="permit"),
    Mutant("a job starts without a start record", without="start record"),
    Mutant("a job is acked before it runs", without="late ack"),
    Mutant("the numbers of claims repeat", without="claim numbers", jobs="AB"),
    Mutant(
        "a process that was declared dead continues with its waiting jobs",
        without="requeue after death",
    ),
    Mutant("there is no reconcile after a lost reply", without="reconcile", kinds=LOST_REPLY),
    Mutant("the next claim does not name what has landed", without="landed", jobs="AB"),
    # With a higher limit it is on probation before its last strike, and runs alone.
    Mutant(
        "a job that ran alongside others is blamed as one that ran alone",
        without="suspect strikes",
        jobs="AB",
        pill=True,
        harms=0,
        strike_limit=1,
    ),
    Mutant(
        "there is no guard: a pill is always recovered",
        without="guard",
        jobs="B",
        pill=True,
        harms=0,
    ),
    Mutant("a job is requeued at a stop before its run has ended", without="cut short", kinds=STOP),
    Mutant(
        "a worker leaves without a tombstone, and its blocking read still waits",
        without="tombstone",
        harms=2,
        kinds=DEATH | STOP,
    ),
    Mutant("an ack that had no reply is not sent again", without="second ack", kinds=LOST_REPLY),
    _row(
        Event.ACK,
        State.RETURNING,
        None,
        "a late run ends, and its job is requeued all the same",
        plain=True,
        kinds=CLOSE,
    ),
    _row(
        Event.WITHDRAW,
        State.DETACHED,
        State.RESERVED,
        "it waits for another start, and its channel is closed",
        kinds=CLOSE,
    ),
    _row(
        Event.WITHDRAW,
        State.RUNNING,
        State.GONE,
        "a job with which the pool did not begin is forgotten",
    ),
    _row(Event.CLOSE, State.RESERVED, None, "it is not requeued", kinds=CLOSE),
    _row(Event.CLOSE, State.RESERVED, State.GONE, "it is forgotten", kinds=CLOSE),
    _row(Event.CLOSE, State.FETCHED, None, "it is not requeued", kinds=CLOSE),
    _row(
        Event.CLOSE,
        State.RUNNING,
        State.RETURNING,
        "a running job is requeued, and runs twice",
        kinds=CLOSE,
    ),
    _row(Event.PARK, State.FETCHED, State.GONE, "it is forgotten before it is parked"),
    _row(
        Event.REFUSE, State.PARKING, None, "a parking that was refused is forgotten", kinds=REFUSAL
    ),
    _row(Event.REQUEUE, State.RESERVED, State.GONE, "it is forgotten before it is requeued"),
]
