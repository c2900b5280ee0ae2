"""What a process or a reaper asks the server for, by the package's own structures and rules."""

from __future__ import annotations

from typing import Any

from celery_superfetch.model.job import Counters, Job, parse
from celery_superfetch.model.owner_record import OwnerRecord
from celery_superfetch.model.process import ProcessImage
from celery_superfetch.model.step import Claim
from celery_superfetch.model.strikes import Blame, Decision, Recovery, Running, blame, decide
from celery_superfetch.store.private_lists import history_of

from .keyspace import Keyspaces
from .seen import JOBS, NAMES, NEXT, QUEUE, STEP

DUE = 1  # server ms: long ago
ASKED = ("strikes", "recoveries", "solo_runs")


def facts_of(spaces: Keyspaces, owner: str) -> OwnerRecord:
    image = ProcessImage("elsewhere", 1, "4711", "another-boot", "another-namespace", "image")
    return OwnerRecord.of_process(owner, image, spaces.database.config).with_(lists={QUEUE: 0})


def job_of(owner: str, id: str, name: str) -> Job:
    return Job(owner, QUEUE, JOBS[name], id)


def register(spaces: Keyspaces, owner: str) -> str:
    return spaces.registry.register(facts_of(spaces, owner)).status


def heartbeat(spaces: Keyspaces, owner: str) -> str:
    return spaces.registry.heartbeat(facts_of(spaces, owner), 0, {}).status


def claim(spaces: Keyspaces, owner: str, landed: bool, starts: int) -> Any:
    """The claim's id, job, and whether it has counters; None where there was none."""
    call = spaces.lists.claim_call(owner, [QUEUE], 1, 1, [QUEUE] if landed else [], starts)
    claims = spaces.lists.read_claims(call, [QUEUE], spaces.run(*call))
    found = [(c.job.claim_id, NAMES[c.job.payload], c.counters is not None) for c in claims.jobs]
    return found[0] if found else None


def claim_alone(spaces: Keyspaces, owner: str) -> Any:
    call = spaces.lists.claim_suspect(owner, QUEUE)
    reply = spaces.run(*call)
    if reply[0] != b"ok":
        return None
    return call.args[-1], NAMES[reply[1]], history_of(reply[2]) is not None


def land(spaces: Keyspaces, owner: str) -> Any:
    keys = spaces.keys
    return spaces.command("LMOVE", keys.queue(QUEUE), keys.landing(owner, QUEUE), "RIGHT", "LEFT")


def record(spaces: Keyspaces, owner: str, id: str, name: str) -> Any:
    return spaces.run(*spaces.lists.settle(owner, [], [job_of(owner, id, name)]))


def ack(spaces: Keyspaces, owner: str, id: str, name: str, counted: bool) -> bool:
    """Return whether the job was there."""
    settle = spaces.lists.settle_counted if counted else spaces.lists.settle
    return bool(spaces.run(*settle(owner, [job_of(owner, id, name)])))


def hand_on(spaces: Keyspaces, owner: str, id: str) -> int:
    claim = Claim("", spaces.keys.private(owner), id, token=1)
    return spaces.lists.publish_step("step:0", STEP, [NEXT], 0, "", claim)


def requeue(spaces: Keyspaces, owner: str, id: str, name: str) -> int:
    return spaces.lists.requeue_all([job_of(owner, id, name)], 0)


def return_landed(spaces: Keyspaces, owner: str) -> int:
    return spaces.lists.return_landed(owner, {QUEUE: 0})


def park(spaces: Keyspaces, owner: str, id: str, name: str) -> int:
    return spaces.run(*spaces.parked.park({job_of(owner, id, name): DUE}))


def release(spaces: Keyspaces) -> int:
    return spaces.parked.release({}).jobs


def forget(spaces: Keyspaces, owner: str) -> None:
    spaces.command("ZREM", spaces.keys.reaped, owner)


def mark(spaces: Keyspaces, owner: str) -> int | None:
    """How many of its jobs ran, if it was not heard since its score was 1."""
    marked = spaces.registry.mark(facts_of(spaces, owner), 1, 60, "gone")
    return None if marked is None else marked.ran_at_reap


def counters(spaces: Keyspaces, names: tuple[str, ...]) -> tuple[tuple[int | None, int, int], ...]:
    found = spaces.seen[spaces.at].counters
    read = [Counters.read(**{n: found.get(name, {}).get(n) for n in ASKED}) for name in names]
    return tuple((c.strikes, c.recoveries, c.solo_runs) for c in read)


def recovery(
    spaces: Keyspaces, owner: str, found: tuple, running: tuple[str, ...], ran: int
) -> Recovery:
    """What is to be decided on: a claim, as it and its counters were read."""
    id, name, strikes, recoveries, probation = found
    job, known = job_of(owner, id, name), Counters(strikes, recoveries, (), probation)
    blamed = blame(id, Running(running, at_death=ran), known, spaces.limits)
    if spaces.blames_all and blamed is Blame.SUSPECT:
        blamed = Blame.EXACT
    envelope = parse(job.payload)
    return Recovery.of(
        job, envelope, known, blame=blamed, limits=spaces.limits, reason="gone", app_name="shop"
    )


def decided(
    spaces: Keyspaces, owner: str, found: tuple, running: tuple[str, ...], ran: int
) -> bool:
    """Whether it is killed."""
    return decide(recovery(spaces, owner, found, running, ran)) is Decision.KILL


def kill(spaces: Keyspaces, owner: str, found: tuple, running: tuple[str, ...], ran: int) -> str:
    dead_set, one = spaces.strike_counters.dead_set, recovery(spaces, owner, found, running, ran)
    return spaces.run(*dead_set.kill_call(one, 0, marked=True))[0].decode()


def recover(
    spaces: Keyspaces, owner: str, found: tuple, running: tuple[str, ...], ran: int
) -> tuple[str, ...]:
    all_of = [recovery(spaces, owner, one, running, ran) for one in found]
    replies = spaces.run(*spaces.strike_counters.recover(all_of, 0, marked=True))
    return tuple(reply.decode() for reply in replies)
