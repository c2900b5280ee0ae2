"""Acts on many jobs, batch by batch: retries and deletes dead jobs, and revokes others.

The page and `superfetch jobs revoke` call ``carry_out`` with the ids that were counted before the
question, so it acts on no other job. After each batch the audit entry has the number of jobs that
were dealt with. If the process dies, each job is in one place; the jobs after the last batch are
where they were, and the action can be continued with the number in its entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote_plus

from celery import Celery

from .. import DeadSet
from ..errors import SuperfetchError
from ..inspector import WAITING, AuditRecord, Inspector, JobPlace
from ..model.dead_job import FULL_ID
from ..model.humanize import command, number
from ..model.job import parse
from .jobs import fits

#: Jobs that one bulk action has at most. A worker keeps up to 50,000 revoked task ids in memory
#: (Celery's ``REVOKES_MAX``), and forgets the oldest beyond that.
BULK_MAX = 20_000
#: Bytes of their ids in the form that names them; the form may have 1 MB.
BULK_IDS_MAX_BYTES = 900_000

#: Jobs of one batch: of one script at a time, and of one message to the workers.
DEAD_JOBS_PER_BATCH, REVOKES_PER_MESSAGE = 100, 1000

#: Seconds in which workers confirm a revoke.
REVOKE_REPLY_S = 1.0

POOL_CANNOT = "its pool cannot end a run: the job continues until it ends, or until the worker ends"
#: Said of an action that has more jobs than may be in one.
FIRST_ALONE = f" There are more: these are the first, as many as one action may have ({BULK_MAX})."
REVOKE_UNCONFIRMED = (
    "no worker answered, and only workers that receive a revoke obey it: the jobs may run later. "
    "Start a worker, and revoke them again before they are due"
)


class NoWorkerAnswered(SuperfetchError):
    """No worker has confirmed a revoke: the jobs may run."""


class Batch(NamedTuple):
    """The result of one batch."""

    done: int
    failed: int = 0
    texts: Sequence[str] = ()  # errors and warnings
    verb: str = ""  # of the outcome, if it is not the action's


class BulkAction(NamedTuple):
    """A kind of change of many jobs."""

    name: str  # the command that does the same
    verb: str  # of its outcome
    batch: int  # jobs of one batch
    #: Called once for each action: returns the function that acts on the ids of one batch.
    begin: Callable[[Celery, Inspector], Callable[[Sequence[str]], Batch]]


def not_whole(id: str) -> str:
    """Return the refusal of a part of an id, or of a task's id: a search for the dead job would
    have to read all of them."""
    return (
        f"no job {id!r} in the dead set. The page needs the whole id of a job; `{command()} dead "
        "show` also accepts the beginning of one, and task ids"
    )


def _retry(app: Celery, inspector: Inspector) -> Callable[[Sequence[str]], Batch]:
    app.loader.import_default_modules()
    dead_set = DeadSet(app, inspector.database.client)  # for all batches: it connects to the broker

    def retry(ids: Sequence[str]) -> Batch:
        whole = [id for id in ids if FULL_ID.fullmatch(id)]
        texts = [not_whole(id) for id in ids if not FULL_ID.fullmatch(id)]
        tried = dead_set.retry_many(whole)
        texts += [attempt.error for attempt in tried if attempt.error]
        warnings = [attempt.warning for attempt in tried if attempt.warning]
        return Batch(len(ids) - len(texts), len(texts), [*texts, *warnings])

    return retry


def _delete(_: Celery, inspector: Inspector) -> Callable[[Sequence[str]], Batch]:
    def delete(ids: Sequence[str]) -> Batch:
        deleted = inspector.dead_set.delete(*ids)
        gone = len(ids) - deleted
        return Batch(deleted, gone, [f"{gone} were no longer there"] * bool(gone))

    return delete


def _revoke(app: Celery, inspector: Inspector) -> Callable[[Sequence[str]], Batch]:
    return partial(_tell_workers, app, inspector, terminate=False)


def _terminate(app: Celery, inspector: Inspector) -> Callable[[Sequence[str]], Batch]:
    return partial(_tell_workers, app, inspector, terminate=True)


def _tell_workers(app: Celery, inspector: Inspector, ids: Sequence[str], terminate: bool) -> Batch:
    """Tell all workers to revoke jobs. Raises NoWorkerAnswered."""
    workers = sum(1 for record in inspector.registry.healthy() if record.node)
    replies = app.control.revoke(
        [*ids], terminate=terminate, reply=True, timeout=REVOKE_REPLY_S, limit=workers or None
    )
    if not replies:
        raise NoWorkerAnswered(REVOKE_UNCONFIRMED)
    answers: list[tuple[str, Any]] = [answer for reply in replies for answer in reply.items()]
    errors = [(node, answer["error"]) for node, answer in answers if "error" in answer]
    texts = [
        f"{node}: {POOL_CANNOT if 'NotImplementedError' in error else error}"
        for node, error in errors
    ]
    return Batch(len(ids), 0, texts, f"Told {number(len(answers), 'worker')} to revoke")


RETRY = BulkAction("dead retry", "Requeued", DEAD_JOBS_PER_BATCH, _retry)
DELETE = BulkAction("dead delete", "Deleted", DEAD_JOBS_PER_BATCH, _delete)
REVOKE = BulkAction("jobs revoke", "Revoked", REVOKES_PER_MESSAGE, _revoke)
TERMINATE = BulkAction("jobs terminate", "Revoked", REVOKES_PER_MESSAGE, _terminate)

BULK_ACTIONS = {action.name: action for action in (RETRY, DELETE, REVOKE, TERMINATE)}

#: Texts that an outcome has at most.
OUTCOME_TEXTS = 100


def carry_out(
    app: Celery,
    inspector: Inspector,
    record: AuditRecord,
    action: BulkAction,
    ids: Sequence[str],
    progress: Callable[[int], object] = lambda done: None,
) -> Batch:
    """Act on the jobs after those that the entry of ``record`` says were dealt with; return the sum
    of all batches.

    Arguments:
        record: of the audit entry. The caller writes its end (``AuditList.recording``).
        progress: called after each batch with the number of jobs that were dealt with.

    Raises:
        redis.exceptions.RedisError: the server cannot be reached; the action can be continued.
        NoWorkerAnswered: no worker has confirmed a revoke; the same holds.
    """
    texts: list[str] = []
    verb = action.verb
    done, failed = record.entry.done, record.entry.failed
    act = action.begin(app, inspector)
    for at in range(done + failed, len(ids), action.batch):
        result = act(ids[at : at + action.batch])
        done, failed = done + result.done, failed + result.failed
        texts = [*dict.fromkeys([*texts, *result.texts])][:OUTCOME_TEXTS]
        verb = result.verb or verb
        record.progress(done, failed)
        progress(done + failed)
    text = f"{verb} {done} of {number(len(ids), 'job')}"
    record.end(". ".join([text, *texts[:3]]), done, failed)
    return Batch(done, failed, texts, verb)


def first_that_fit(ids: Iterable[str]) -> tuple[list[str], bool]:
    """Return the first ids, each once, that one bulk action may have, and whether more follow."""
    chosen: dict[str, None] = {}
    size = 0
    for id in ids:
        if id in chosen:
            continue
        size += len(quote_plus(id.encode(errors="replace"))) + len("&id=")
        if len(chosen) >= BULK_MAX or size > BULK_IDS_MAX_BYTES:
            return [*chosen], True
        chosen[id] = None
    return [*chosen], False


def waiting_ids(
    inspector: Inspector, queue_lists: Sequence[str], task: str | None = None
) -> Iterable[str]:
    """Yield the task ids of the jobs that wait on some queue lists, in the order of their claims.

    Arguments:
        task: only jobs of this task; ``*`` stands for anything.
    """
    places = [JobPlace(WAITING, queue_list=name) for name in queue_lists]
    for batch in inspector.in_flight_jobs.jobs(places, BULK_MAX):
        for _, payload, *_ in batch:
            envelope = parse(payload)
            if envelope.task_id and fits(envelope.task, task):
                yield envelope.task_id
