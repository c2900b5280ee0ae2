"""Private lists: the jobs in flight of each owner, and the calls that claim, ack and requeue them.

An *owner* is a process that claims jobs. A private list is a hash: claim id -> payload, and beside
it a *waiting note* for each job that has not begun, and a *steps note* for a job that has published
steps (messages that it sends because it ends). Most methods return a ``Call``, which
``PendingLeases`` (``owner/in_flight``) sends: in the thread of the worker's event loop, and in a
thread of the pool if a job is acked there. ``publish_step`` is called in the process that runs the
job; if the worker's connection has another host or user, ``transport/step_publishing.py`` asks
``can_publish_steps_of`` before. A worker that puts a job on probation calls ``mark_suspect``. The
reaper, an owner after a lost
reply, and `superfetch rollback` call ``held``, ``jobs`` and ``return_landed``; `superfetch
rollback` also calls ``requeue_all``. The console reads the lists of other owners.

If a worker dies, its jobs stay where they are until a reaper requeues them: the claimed ones in its
private list, and those that a blocking read has just moved in its *landing lists* (one for each
queue list). Each script is atomic, so no job is ever between two places.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from time import time
from types import MappingProxyType
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from ..model.job import (
    CLAIMS_A_SECOND,
    Claimed,
    Counters,
    Job,
    claim_id,
    claim_number,
    digest,
    parse,
    queue_list_of,
)
from ..model.log_text import one_line_each
from ..model.step import Claim, was_published
from ..model.strikes import STOPS_NAMED, STOPS_TO_FRONT, stop_record
from .database import Database, Structure, chunks, is_wrong_type
from .owner_registry import OwnerRegistry
from .redis.call import Call
from .redis.clients import LoneConnection
from .redis.server import warn_once

logger = one_line_each(logging.getLogger(__name__))

#: Bytes of jobs after which a claim takes no further job: other clients wait while its script runs.
#: The script pops several jobs at a time, and may exceed this by the last ones that it popped.
CLAIM_MAX_BYTES = 4 * 1024 * 1024
#: If a blocking read has brought a payload of at least so many bytes, the reply to its claim omits
#: it: the worker has it already.
LARGE_BYTES = 16 * 1024
#: Bytes of the end of such a payload by which the script recognises it; they hold its delivery tag.
END_BYTES = 256
#: Landing lists that one script empties: a worker may have thousands.
LANDINGS_PER_SCRIPT = 1000
#: First letter of a note's field; the claim id follows. The waiting note says that the job has not
#: begun; the steps note lists the steps (next links, chord bodies) that the job has published.
WAITS, STEPS = "w", "s"
#: Index of the number of the first claim in the arguments of ``claim.lua``.
FIRST_NUMBER_AT = 8


NO_PAYLOADS: Mapping[str, bytes] = MappingProxyType({})


def write_at_once(write: Callable[..., object], *args: Any) -> None:
    """Write a log line."""
    write(*args)


class Claims(NamedTuple):
    """The reply to a claim."""

    registered: bool  # False: the server does not know the owner; nothing was claimed
    jobs: Sequence[Claimed] = ()
    errors: Sequence[tuple[str, str]] = ()  # queue list -> why it could not be read
    started: int = 0  # how many of the first jobs have no waiting note: they count as running
    #: Those of the queue lists whose queue is paused. Their landing lists stay as they are.
    paused: frozenset[str] = frozenset()

    def fell_short(self, most: int) -> bool:
        """Return whether there were fewer than ``most`` jobs, so that the queues are empty now."""
        size = sum(len(claimed.job.payload) for claimed in self.jobs)
        return len(self.jobs) < most and size < CLAIM_MAX_BYTES


class Held(NamedTuple):
    """The claims of an owner, by their ids."""

    claims: Sequence[str]  # the newest first
    #: The claims without a waiting note. Ids without a number, which a person has written by hand,
    #: are left out.
    running: frozenset[str]


class PrivateLists(Structure):
    """Jobs in flight (``superfetch:private:<owner>``), and jobs that a blocking read has moved away
    from a queue and no claim has taken yet (``superfetch:landing:<owner>:<queue list>``)."""

    def __init__(self, database: Database, log: Callable[..., object] = write_at_once) -> None:
        """
        Arguments:
            log: writes a log line, now or later: called with the function that writes it, and its
                arguments. ``PendingLeases`` writes it later: it may hold the lock of the leases,
                and while a log handler is slow, no job could be claimed or acked.
        """
        super().__init__(database)
        self._log = log
        self._next_number = 0

    def _numbers(self, count: int) -> int:
        """Reserve numbers for ``count`` claims of this process; return the first. They grow with
        the time, so that claim ids show which claim is older."""
        first = max(self._next_number, int(time()) * CLAIMS_A_SECOND)
        self._next_number = first + count
        return first

    def claim_call(
        self,
        owner: str,
        lists: Sequence[str],
        most: int,
        fairness_width: int,
        landed: Collection[str],
        starts: int,
        brought: Mapping[str, bytes] = NO_PAYLOADS,
    ) -> Call:
        """Return the call that claims jobs; ``read_claims`` reads its reply.

        Arguments:
            lists: the queue lists to claim from, in this order.
            most: the number of jobs to claim at most; one from each landing list in any case.
            fairness_width: how many neighbours of ``lists`` are claimed from in rotation, one job
                from each, until they are empty; then as many of the next neighbours follow. 0:
                claim only jobs that have landed.
            landed: those of ``lists`` whose landing lists have jobs; these are claimed first. A job
                lands for one channel, and any channel of this owner may claim it. So a list is
                named once for each job, and each name claims a job, if one is left: no job stays
                that no claim names.
            starts: the first ``starts`` jobs get no waiting note, since their consumer starts them
                at once.
            brought: queue list -> the payload that a blocking read has brought from it. If it is
                large, the server does not send it again.
        """
        keys, list_names = self.keys, self.database.list_names
        most = max(most, len(landed))
        names = [keys.owners, keys.has_history, keys.private(owner), keys.paused]
        names += map(keys.queue, lists)
        prefixes = keys.history(""), len(keys.prefix.encode()), keys.landing(owner, "")
        args = [
            owner,
            most,
            CLAIM_MAX_BYTES,
            *prefixes,
            fairness_width,
            starts,
            self._numbers(most),
            list_names.separator,
            " ".join(map(str, filter(None, list_names.steps))),
        ]
        numbers = {name: at for at, name in enumerate(lists, 1)} if landed else {}
        for name in landed:
            args += [numbers[name], *recognised_by(brought.get(name, b""))]
        return Call("claim", names, args)

    def read_claims(
        self,
        call: Call,
        lists: Sequence[str],
        reply: Any,
        brought: Mapping[str, bytes] = NO_PAYLOADS,
    ) -> Claims:
        """Read the reply to a call of ``claim_call``; ``lists`` and ``brought`` as there."""
        if reply is None:
            return Claims(registered=False)
        started, rows, failures, paused = reply
        owner, first, jobs = call.args[0], call.args[FIRST_NUMBER_AT], []
        for number, (at, payload, mark) in enumerate(chunks(rows, 3), first):
            name = lists[at - 1]
            # An int stands for a payload that the server has not sent again.
            payload = brought[name] if isinstance(payload, int) else payload
            job = Job(owner, name, payload, claim_id(number, name))
            jobs.append(Claimed(job, history_of(mark)))
        errors = [(lists[at - 1], why.decode(errors="replace")) for at, why in chunks(failures, 2)]
        return Claims(True, jobs, errors, started, frozenset(lists[at - 1] for at in paused))

    def send_blocking_read(
        self, connection: LoneConnection, owner: str, queue_list: str, timeout: int
    ) -> None:
        """Send a blocking read, and return at once, without a wait. When a job comes to the queue
        list, the server moves it to the owner's landing list, from which the next claim takes it.
        The caller reads the reply later: the job's payload, or None after ``timeout`` seconds."""
        queue, landing = self.keys.queue(queue_list), self.keys.landing(owner, queue_list)
        connection.send("BLMOVE", queue, landing, "RIGHT", "LEFT", timeout)

    def claim_suspect(self, owner: str, queue_list: str, alongside: bool = False) -> Call:
        """Return the call that claims the next suspect (a job on probation); its last argument is
        the claim id. ``alongside``: the job will run alongside others, since this worker has waited
        in vain for a moment at which it runs nothing else."""
        keys = self.keys
        names = [keys.owners, keys.on_probation, keys.probation(queue_list), keys.private(owner)]
        id = claim_id(self._numbers(1), queue_list)
        names.append(keys.paused)
        queue = self.database.queue_of(queue_list)
        args = [owner, queue_list, keys.history(""), int(alongside), queue, id]
        return Call("probation", names, args)

    def mark_suspect(self, job: Job) -> None:
        """Record in a job's history that its next requeue or recovery puts it on probation."""
        key = self.keys.history(digest(job.payload))
        try:
            self._mark(key)
        except ResponseError as exc:
            if not is_wrong_type(exc):
                raise
            # As the scripts do: a key that another program wrote counts as no history.
            self._log(
                logger.warning,
                "celery_superfetch deleted key %s: it must hold a job's history, and was of "
                "another type. The strikes of job %s count from 0 again. Find the program that "
                "writes to superfetch keys.",
                key,
                job.title,
            )
            self.client.delete(key)
            self._mark(key)

    def _mark(self, key: str) -> None:
        self.scripts.run("suspect", [key], [int(self.config.strike_window)])

    def settle(self, owner: str, acked: Sequence[Job], starting: Iterable[Job] = ()) -> Call:
        """Return the command (HDEL, no script) that acks ``acked`` jobs of one owner, which have no
        history, and records the starts of ``starting`` ones: it removes the claims of the first and
        the waiting notes of the second. One of the two must not be empty. If its reply is 0, none
        of the acked jobs was in the private list."""
        fields = [name for job in acked for name in names_of(job.claim_id)]
        fields += [WAITS + job.claim_id for job in starting]
        return Call("HDEL", [self.keys.private(owner)], fields, is_plain=True)

    def settle_counted(self, owner: str, acked: Sequence[Job]) -> Call:
        """Return the call that acks jobs of one owner which have histories: it removes the claims
        and the histories. Its reply is the number of jobs that were in the private list."""
        keys = [self.keys.private(owner)]
        keys += [self.keys.history(digest(job.payload)) for job in acked]
        return Call("ack", keys, [job.claim_id for job in acked])

    def requeue(
        self, jobs: Sequence[Job], where: str, expires: int, stopped: Collection[Job] = ()
    ) -> Call:
        """Return the call that requeues jobs of one owner and queue list. Its reply lists those
        that were not in the private list, as positions in ``jobs`` from 1.

        Arguments:
            where: ``front`` or ``back`` of the queue (suspects go to that end of their probation
                list instead), or ``rollback``: the front of the queue for all, also for suspects.
                For the front the newest claim comes first.
            expires: x-expires of the queue in ms; 0: none.
            stopped: jobs whose run was cut short because their worker was stopping.
        """
        keys, owner, queue_list = self.keys, jobs[0].owner, jobs[0].queue_list
        names = [keys.private(owner), keys.queue(queue_list), keys.has_history, keys.stats]
        names += [keys.probation(queue_list), keys.on_probation, keys.stopped, keys.stats_rows]
        names += [keys.history(digest(job.payload)) for job in jobs]
        window = int(self.config.strike_window)
        args = [queue_list, where, window, expires, owner, STOPS_TO_FRONT, STOPS_NAMED]
        for job in jobs:
            task, id = parse(job.payload)[1:3]
            record = stop_record(job, task, id) if job in stopped else ""
            args += [job.claim_id, record, self.database.counted_as(task)]
        # As its whole text, not by its digest: if a restarted server did not know the digest, the
        # requeue would be sent again, and run after the commands that were sent behind it.
        return Call("requeue", names, args, whole=True)

    def requeue_all(self, jobs: Sequence[Job], expires: int) -> int:
        """Requeue jobs of one owner and queue list to the front of the queue, also the suspects:
        stock kombu, which is to run them, knows no probation. Return how many were there."""
        missing = self.scripts.run(*self.requeue(jobs, "rollback", expires))
        return len(jobs) - len(missing)

    def publish_step(
        self,
        name: str,
        message: str | bytes,
        lists: Sequence[str],
        ms: int,
        earlier: str,
        claim: Claim,
        is_over: bool = False,
    ) -> int:
        """Publish a step of a running job, unless an earlier run of the job has published it.

        Arguments:
            name: the step's name in the steps note.
            lists: the queue lists of its queue; it is pushed to the first. They expire together in
                ``ms`` milliseconds; 0: they do not.
            earlier: the steps note of earlier runs, as the claim brought it.
            claim: the claim of the running job.
            is_over: nothing of the job is left to do after this step. The claim stays until the
                job is acked; the steps note says that the job is over.

        Returns:
            1: it was published; 0: it was published before; -1: the claim is gone, and another
            process may run the job.
        """
        if was_published(earlier, name):
            return 0
        keys = [claim.private, *map(self.keys.queue, lists)]
        return int(self.scripts.run("step", keys, [claim.id, name, int(is_over), message, ms]))

    def can_publish_steps_of(self, claim: Claim) -> bool:
        """Return whether this is the database of a claim: it has the record of the claim's owner,
        or the owner's tombstone. Raises NoPermissionError if this user may not read that, or may
        not run the script of ``publish_step``."""
        _, owner, _ = self.keys.parse(claim.private.encode())
        if not OwnerRegistry(self.database).knows(owner):
            return False
        # Without a claim id the script does nothing.
        self.publish_step("", b"", (), 0, "", claim._replace(id=""))
        return True

    def return_landed(self, owner: str, lists: Mapping[str, int]) -> int:
        """Put the jobs in an owner's landing lists back to the front of their queues.

        Arguments:
            lists: queue list -> its x-expires in ms (0: none).

        Returns:
            the number of these jobs.
        """
        total = 0
        for some in chunks([*lists], LANDINGS_PER_SCRIPT):
            pairs = [(self.keys.landing(owner, name), self.keys.queue(name)) for name in some]
            names = [key for pair in pairs for key in pair]
            total += int(self.scripts.run("return_landed", names, [lists[name] for name in some]))
        return total

    def held(self, owner: str) -> Held:
        """Return the claims of an owner."""
        [held] = self.all_held([owner])
        return held

    def all_held(self, owners: Sequence[str]) -> list[Held]:
        """Return the claims of each owner, in one round trip."""
        commands = [("HKEYS", self.keys.private(owner)) for owner in owners]
        rows = self._at_once(commands, empty=[])
        return [self._held(*row) for row in zip(owners, rows, strict=True)]

    def _held(self, owner: str, fields: Collection[bytes]) -> Held:
        waiting, claims = claims_of(fields, waiting=True), claims_of(fields)
        # A set: to search a list for each claim took 11 s for 20,000 claims, and four times as long
        # for twice as many.
        there = set(fields)
        # Fields that were written by hand: they name no queue list, or are not UTF-8.
        odd = [name for name in claims if not queue_list_of(name) or name.encode() not in there]
        if odd:
            left_out = set(odd)
            claims = [name for name in claims if name not in left_out]
            self._log(
                warn_once,
                f"Unknown fields in a private list (key={self.keys.private(owner)}, "
                f"fields={len(odd)}): {', '.join(map(repr, odd[:3]))}. They stay there and never "
                "run: read them with HGETALL, and push what is a job to its queue.",
            )
        running = frozenset(filter(claim_number, claims)).difference(waiting)
        return Held(sorted(claims, key=claim_number, reverse=True), running)

    def jobs(self, owner: str, claim_ids: Sequence[str], room: int) -> tuple[list[Job], int]:
        """Read the first of some claims of an owner, until their payloads have ``room`` bytes.

        Returns:
            the jobs that are still there, and the number of claims that were examined.
        """
        return self.read([(owner, id) for id in claim_ids], room)

    def read(self, claims: Sequence[tuple[str, str]], room: int) -> tuple[list[Job], int]:
        """Read claims as ``jobs`` does, of several owners: each is (owner, claim id)."""
        names = [self.keys.private(owner) for owner, _ in claims]
        payloads = self.scripts.run("payloads", names, [room, *(id for _, id in claims)])
        rows = zip(claims, payloads, strict=False)
        jobs = [
            Job(owner, queue_list_of(id), raw, id) for (owner, id), raw in rows if raw is not None
        ]
        return jobs, len(payloads)

    def place_of(self, owner: str) -> str:
        """Return the key of an owner's private list, as an operator types it."""
        return self.keys.private(owner)

    def key_of(self, job: Job) -> str:
        """Return the key of the private list that has a job."""
        return self.keys.private(job.owner)

    def put_notes_back(self, owner: str, claim_ids: Sequence[str]) -> Call:
        """Return the call that puts back the waiting notes of jobs of one owner: they have not
        begun after all, and no longer count as running."""
        return Call("wait", [self.keys.private(owner)], claim_ids)


def recognised_by(payload: bytes) -> tuple[int, bytes]:
    """Return the length and the end of a payload, by which ``claim.lua`` recognises it. The end is
    that of one job only if it has the delivery tag, which is random and which kombu writes last.
    Return 0 and an empty end if it has none, or if the payload is small."""
    end = payload[-END_BYTES:]
    if len(payload) < LARGE_BYTES or b'"delivery_tag": "' not in end:
        return 0, b""
    return len(payload), end


def names_of(claim_id: str) -> tuple[str, str, str]:
    """Return the fields that a claim may have: its own, and those of its two notes."""
    return claim_id, WAITS + claim_id, STEPS + claim_id


def claims_of(fields: Iterable[bytes], *, waiting: bool = False) -> list[str]:
    """Return the claim ids among the fields of a private list; with ``waiting`` those that have a
    waiting note."""
    names = [field.decode(errors="replace") for field in fields]
    if waiting:
        return [name[len(WAITS) :] for name in names if name.startswith(WAITS)]
    return [name for name in names if not name.startswith((WAITS, STEPS))]


def history_of(mark: Any) -> Counters | None:
    """Read a claimed job's history of earlier deliveries, as ``claim.lua`` and ``probation.lua``
    return it: a list of the fields below, each of which may be missing; or 0: there is no
    history."""
    if not isinstance(mark, list):
        return None
    # Only ``probation.lua`` returns the last one.
    counts = ("recoveries", "strikes", "requeues", "token", "steps", "stops")
    fields = (*counts, "first_claim", "solo_runs")
    return Counters.read(**dict(zip(fields, mark, strict=False)))
