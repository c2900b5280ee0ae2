"""The calls of a process or a reaper to the server, by the package's own structures and rules.

Each function gets the keyspaces, makes one call on the current one, and returns what the caller
learns from the reply. ``Keyspaces.call`` remembers the results.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from celery_superfetch.model.job import Counters, Job, parse
from celery_superfetch.model.owner_record import OwnerRecord
from celery_superfetch.model.process import ProcessImage
from celery_superfetch.model.step import Claim
from celery_superfetch.model.strikes import Blame, Decision, Recovery, Running, blame, decide
from celery_superfetch.store.private_lists import history_of

from .contents import JOBS, NAMES, NEXT, QUEUE, STEP
from .keyspace import Keyspaces

DUE = 1  # server ms: long ago, so that a parked job is due at once
COUNTERS = ("strikes", "recoveries", "solo_runs")


def record_of(spaces: Keyspaces, owner: str) -> OwnerRecord:
    """Return the record of an owner on another host."""
    image = ProcessImage("elsewhere", 1, "4711", "another-boot", "another-namespace", "image")
    return OwnerRecord.of_process(owner, image, spaces.database.config).with_(lists={QUEUE: 0})


def job_of(owner: str, id: str, name: str) -> Job:
    """Return the package's job of a claim."""
    return Job(owner, QUEUE, JOBS[name], id)


def register(spaces: Keyspaces, owner: str) -> str:
    """Register an owner; return the status in the answer."""
    return spaces.registry.register(record_of(spaces, owner)).status


def heartbeat(spaces: Keyspaces, owner: str) -> str:
    """Send a heartbeat; return the status in the answer."""
    return spaces.registry.heartbeat(record_of(spaces, owner), 0, {}).status


def claim(spaces: Keyspaces, owner: str, landed: bool, starts: int) -> Any:
    """Claim one job; return the claim's id, the job, and whether the job has a history. None: no
    job was claimed."""
    call = spaces.lists.claim_call(owner, [QUEUE], 1, 1, [QUEUE] if landed else [], starts)
    claims = spaces.lists.read_claims(call, [QUEUE], spaces.run(*call))
    found = [(c.job.claim_id, NAMES[c.job.payload], c.counters is not None) for c in claims.jobs]
    return found[0] if found else None


def claim_alone(spaces: Keyspaces, owner: str) -> Any:
    """Claim a suspect for its solo run; the result is that of ``claim``."""
    call = spaces.lists.claim_suspect(owner, QUEUE)
    reply = spaces.run(*call)
    if reply[0] != b"ok":
        return None
    return call.args[-1], NAMES[reply[1]], history_of(reply[2]) is not None


def land(spaces: Keyspaces, owner: str) -> Any:
    """Move a job to the landing list of an owner, as its blocking read does."""
    keys = spaces.keys
    return spaces.command("LMOVE", keys.queue(QUEUE), keys.landing(owner, QUEUE), "RIGHT", "LEFT")


def record_start(spaces: Keyspaces, owner: str, id: str, name: str) -> Any:
    """Record that a job runs: remove its waiting note."""
    return spaces.run(*spaces.lists.settle(owner, [], [job_of(owner, id, name)]))


def put_note_back(spaces: Keyspaces, owner: str, id: str, name: str) -> Any:
    """Put the waiting note of a job back."""
    return spaces.run(*spaces.lists.put_notes_back(owner, [id]))


def ack(spaces: Keyspaces, owner: str, id: str, name: str, has_history: bool) -> bool:
    """Ack a job; return whether its claim was there."""
    settle = spaces.lists.settle_counted if has_history else spaces.lists.settle
    return bool(spaces.run(*settle(owner, [job_of(owner, id, name)])))


def publish_step(spaces: Keyspaces, owner: str, id: str) -> int:
    """Publish the step of a job; return -1 if its claim is gone."""
    claim = Claim("", spaces.keys.private(owner), id, token=1)
    return spaces.lists.publish_step("step:0", STEP, [NEXT], 0, "", claim)


def requeue(spaces: Keyspaces, owner: str, id: str, name: str, is_cut_short: bool) -> int:
    """Requeue a job, as a stop if its run was cut short; return 1, or 0 if its claim was gone."""
    job = job_of(owner, id, name)
    stopped = [job] if is_cut_short else []
    return 1 - len(spaces.run(*spaces.lists.requeue([job], "front", 0, stopped)))


def leave(spaces: Keyspaces, owner: str, may_land: bool) -> int:
    """Unregister an owner; return the number of jobs that it still has, -1 if it was reaped. If a
    blocking read may still bring a job, a tombstone stays."""
    return spaces.registry.leave(record_of(spaces, owner), 60 if may_land else 0)


def return_landed(spaces: Keyspaces, owner: str) -> int:
    """Requeue the jobs that have landed for an owner; return their number."""
    return spaces.lists.return_landed(owner, {QUEUE: 0})


def park(spaces: Keyspaces, owner: str, id: str, name: str) -> int:
    """Move a job to the parked set."""
    return spaces.run(*spaces.parked.park({job_of(owner, id, name): DUE}))


def release(spaces: Keyspaces) -> int:
    """Move the parked jobs to their queue; return their number."""
    return spaces.parked.release({}).jobs


def drop_tombstone(spaces: Keyspaces, owner: str) -> None:
    """Make the next passes no longer drain an owner."""
    spaces.command("ZREM", spaces.keys.reaped, owner)


def mark(spaces: Keyspaces, owner: str) -> int | None:
    """Mark an owner reaped if it has sent no heartbeat since its score was 1. Return how many of
    its jobs ran; None: it was not marked."""
    marked = spaces.registry.mark(record_of(spaces, owner), 1, 60, "gone")
    return None if marked is None else marked.ran_at_reap


def counters(spaces: Keyspaces, names: tuple[str, ...]) -> tuple[tuple[int | None, int, int], ...]:
    """Read the strikes, recoveries and solo runs of some jobs."""
    found = spaces.contents[spaces.current].histories
    read = [Counters.read(**{n: found.get(name, {}).get(n) for n in COUNTERS}) for name in names]
    return tuple((c.strikes, c.recoveries, c.solo_runs) for c in read)


class Death(NamedTuple):
    """What the death of an owner says about its jobs."""

    running: tuple[str, ...]  # the claims that ran
    ran_count: int  # how many of its jobs ran when it was marked
    all_exact: bool = False  # a job that ran alongside others is blamed as one alone: a mutant


def recovery(spaces: Keyspaces, owner: str, found: tuple, death: Death) -> Recovery:
    """Return the recovery on which the package decides.

    Arguments:
        found: claim id, job, strikes, recoveries and solo runs, as the reaper read them.
    """
    id, name, strikes, recoveries, solo_runs = found
    job, known = job_of(owner, id, name), Counters(strikes, recoveries, (), solo_runs)
    running = Running(death.running, at_death=death.ran_count)
    blamed = blame(id, running, known, spaces.limits)
    if death.all_exact and blamed is Blame.SUSPECT:
        blamed = Blame.EXACT
    envelope = parse(job.payload)
    return Recovery.of(
        job, envelope, known, blame=blamed, limits=spaces.limits, reason="gone", app_name="shop"
    )


def is_kill(spaces: Keyspaces, owner: str, found: tuple, death: Death) -> bool:
    """Return whether the package decides to dead-letter the job."""
    return decide(recovery(spaces, owner, found, death)) is Decision.KILL


def kill(spaces: Keyspaces, owner: str, found: tuple, death: Death) -> str:
    """Dead-letter a job; return the outcome."""
    dead_set, one = spaces.strike_counters.dead_set, recovery(spaces, owner, found, death)
    return spaces.run(*dead_set.kill_call(one, 0, marked=True))[0].decode()


def recover(spaces: Keyspaces, owner: str, found: tuple, death: Death) -> tuple[str, ...]:
    """Recover jobs by one script; return the outcome of each."""
    all_of = [recovery(spaces, owner, one, death) for one in found]
    replies = spaces.run(*spaces.strike_counters.recover(all_of, 0, marked=True))
    return tuple(reply.decode() for reply in replies)
