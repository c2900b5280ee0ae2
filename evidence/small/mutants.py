"""Each safety, taken out once: from a script's text, or from what processes and the reaper do."""

from __future__ import annotations

from typing import NamedTuple

from .keyspace import Changes


class Mutant(NamedTuple):
    what: str
    script: str = ""  # whose text is changed
    changes: Changes = ()
    without: str = ""  # or what processes and the reaper leave out
    pill: bool = False  # it shows where a job kills whoever runs it
    harms: int = 1
    strikes: int = 0  # at which a job is killed, where that matters
    hands_on: bool = False  # it shows where a job hands on a step


def _in(script: str, what: str, *changes: tuple[str, str], **where: int) -> Mutant:
    pill, hands_on = bool(where.pop("pill", 0)), bool(where.pop("hands_on", 0))
    return Mutant(f"{script}: {what}", script, changes, "", pill, hands_on=hands_on, **where)


LEAVES = "redis.call('HDEL', private, id, 'w' .. id, 's' .. id)"

MUTANTS = [
    _in(
        "mark",
        "although it was heard meanwhile",
        ("if math.modf(score) ~= seen then return false end", ""),
    ),
    Mutant("the verdict is not built on silence that was watched", without="watched"),
    _in(
        "heartbeat",
        "who was taken for dead is taken back",
        ("if state == 'reaped' then return {'reaped'} end", ""),
        ("if redis.call('ZSCORE', reaped, owner) then return {'reaped'} end", ""),
    ),
    _in(
        "claim",
        "by an owner that nobody looks after",
        ("if not redis.call('ZSCORE', owners, owner) then return false end", ""),
    ),
    _in(
        "claim",
        "the job stays on its queue",
        ("redis.pcall('RPOP', source, ...)", "{redis.call('LINDEX', source, -1) or nil}"),
    ),
    _in(
        "claim",
        "no note says that it waits",
        ("\n    fields[#fields + 1], fields[#fields + 2] = 'w' .. id, ''", ""),
    ),
    _in("ack", "the job stays", (LEAVES, "redis.call('HEXISTS', private, id)")),
    _in("ack", "the counters stay", ("redis.call('DEL', counters)", "")),
    _in("requeue", "the job stays in its list", (LEAVES, "")),
    _in("requeue", "the job does not arrive", ("redis.call(push, queue, payload)", "")),
    _in("park", "the job stays in its list", (LEAVES, "")),
    _in(
        "park",
        "nobody is told to look there",
        ("redis.call('ZADD', index, 'LT', due, queue_list)", ""),
    ),
    _in("release", "the job stays parked", ("redis.call('ZREM', parked_of .. name, member)", "")),
    _in(
        "return_landed",
        "the job does not arrive",
        ("redis.pcall('LMOVE', landing, queue, 'LEFT', 'RIGHT')", "redis.pcall('LPOP', landing)"),
    ),
    _in("recover", "the job stays in its list", (LEAVES, "")),
    _in(
        "recover",
        "a job that was settled meanwhile",
        ("elseif not payloads[i] then", "elseif false then"),
    ),
    _in(
        "recover",
        "from an owner that nobody has marked",
        ("if unmarked then", "if false then"),
        harms=2,
    ),
    _in(
        "recover",
        "strikes are not counted",
        ("'strikes', strikes,", "'strikes', 0,"),
        pill=1,
        harms=0,
    ),
    _in(
        "recover",
        "nobody is told of suspects",
        ("redis.call('SADD', on_probation, queue_list)", ""),
        pill=1,
        harms=0,
    ),
    _in(
        "probation",
        "a note says that it waits",
        ("HSET', private, id, payload)", "HSET', private, id, payload, 'w' .. id, '')"),
        pill=1,
        harms=0,
    ),
    _in(
        "kill",
        "the job stays in its list",
        ("redis.call('HDEL', private, claim, 'w' .. claim, 's' .. claim)", ""),
        pill=1,
        harms=0,
    ),
    _in(
        "claim",
        "what was handed on is forgotten",
        ("counts ~= 0 and counts[5] then", "false then"),
        hands_on=1,
    ),
    _in(
        "step",
        "by who has the claim no more",
        ("if redis.call('HEXISTS', private, id) == 0 then return -1 end", ""),
        hands_on=1,
    ),
    _in(
        "step",
        "again, though it is noted",
        ("if here >= tonumber(low) and here <= tonumber(high) then", "if false then"),
        hands_on=1,
    ),
    _in(
        "step",
        "it is not noted",
        ("redis.call('HSET', private, 's' .. id, note)", ""),
        hands_on=1,
    ),
    _in(
        "step",
        "it does not arrive",
        ("redis.call('LPUSH', queue, message)", ""),
        hands_on=1,
        harms=0,
    ),
    _in(
        "recover",
        "what was handed on is forgotten",
        ("if steps[i] then redis.call('HSET', history, 'steps', steps[i]) end", ""),
        hands_on=1,
    ),
    Mutant("a job starts without a permit", without="permit"),
    Mutant("a job starts, and is not recorded", without="record"),
    Mutant("a job is acked before it runs", without="late ack"),
    Mutant("numbers of claims come again", without="numbers"),
    Mutant("who was taken for dead goes on with what it had", without="given back"),
    Mutant("nobody looks for what a lost reply spoke of", without="doubt"),
    Mutant("the next claim does not name what landed", without="landed"),
    # With more strikes than one it is on probation before the last, and has no neighbours.
    Mutant(
        "whoever ran beside others is blamed as one alone",
        without="company",
        pill=True,
        harms=0,
        strikes=1,
    ),
    Mutant("no guard: a pill is always recovered", without="guard", pill=True, harms=0),
]
