"""Each safety, taken out once: from a script's text, or from what processes and the reaper do."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    what: str
    script: str = ""  # whose text is changed; or `without`, what is left out by the processes
    old: str = ""
    new: str = ""
    without: str = ""
    pill: bool = False
    harms: int = 1


MUTANTS = [
    Mutant("mark: although it was heard meanwhile", "mark", "or tonumber(score) ~= seen", ""),
    Mutant("mark: no look at the pulse in the verdict", without="watched"),
    Mutant(
        "heartbeat: a reaped owner is taken back",
        "heartbeat",
        "if state == 'reaped' then return {'reaped'} end",
        "",
    ),
    Mutant(
        "claim: the job stays on its queue",
        "claim",
        "redis.pcall('RPOP', source, ...)",
        "redis.pcall('LINDEX', source, -1)",
    ),
    Mutant(
        "ack: the job stays",
        "ack",
        "redis.call('HDEL', private, id, 'r' .. id) == 0",
        "redis.call('HEXISTS', private, id) == 0",
    ),
    Mutant("ack: the record of its run stays", "ack", "id, 'r' .. id) == 0", "id) == 0"),
    Mutant("ack: the counters stay", "ack", "redis.call('DEL', KEYS[counters])", ""),
    Mutant(
        "ack: a start is recorded whose claim is gone",
        "ack",
        "if redis.call('HEXISTS', private, ARGV[i]) == 1 then",
        "if true then",
    ),
    Mutant(
        "requeue: the job stays in its list",
        "requeue",
        "redis.call('HDEL', private, id, 'r' .. id) > 0",
        "true",
    ),
    Mutant(
        "park: the job stays in its list", "park", "redis.call('HDEL', private, id, 'r' .. id)", ""
    ),
    Mutant(
        "park: nobody is told to look there",
        "park",
        "redis.call('ZADD', index, 'LT', due, queue_list)",
        "",
    ),
    Mutant("release: the job stays parked", "release", "redis.call('ZREM', parked, member)", ""),
    Mutant("unland: the job is dropped", "unland", "redis.call('RPUSH', queue, payload)", ""),
    Mutant(
        "recover: the job stays in its list",
        "recover",
        "redis.call('HDEL', private, id, 'r' .. id)",
        "",
    ),
    Mutant(
        "recover: a job that was settled meanwhile",
        "recover",
        "elseif not payloads[i] then",
        "elseif false then",
    ),
    Mutant(
        "recover: strikes are not counted",
        "recover",
        "'strikes', strikes,",
        "'strikes', 0,",
        pill=True,
        harms=0,
    ),
    Mutant(
        "kill: the job stays in its list",
        "kill",
        "redis.call('HDEL', private, claim, 'r' .. claim)",
        "",
        pill=True,
        harms=0,
    ),
    Mutant("a job starts without a certificate", without="certificate"),
    Mutant("a job starts, and is not recorded", without="record"),
    Mutant("a job is acked before it runs", without="late ack"),
    Mutant("numbers of claims come again", without="numbers"),
    Mutant("who was taken for dead goes on with what it had", without="given back"),
    Mutant("no guard: a pill is always recovered", without="guard", pill=True, harms=0),
]
