"""Takes over the jobs that workers of stock kombu have left unacked: they go to the front of their
queues.

`superfetch migrate` (``cli/stock.py``) calls ``take_over``, with `--wait` once a second until no
stock worker is connected. A batch of jobs moves in one script: if the process dies, each job is in
kombu's hash or on its queue, and another `migrate` moves the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import ConnectionError, TimeoutError

from ..errors import StillInUse
from ..model.foreign import class_name, message_of
from ..model.humanize import number
from ..model.job import parse
from ..store.database import chunks
from ..store.queues import Queues
from ..store.redis.server import is_temporary
from .stock_unacked import Moved, StockConsumer, Unacked, UnackedEntry

#: Jobs moved in one script. While it runs, the server answers no other client.
MIGRATE_BATCH = 25

#: Message, exchange and routing key -> its queue lists -> ms of x-expires; none: it goes nowhere.
Routes = Callable[[Mapping[str, Any], str, str], Mapping[str, int]]


@dataclass
class Left:
    """A job that stays in kombu's hash."""

    tag: str
    why: str
    task: str | None = None
    task_id: str | None = None
    exchange: str = ""
    routing_key: str = ""


@dataclass
class Migrated:
    """The outcome of one ``take_over``; its fields are those of ``--json``."""

    found: int = 0
    requeued: int = 0
    queues: Counter[str] = field(default_factory=Counter)  # queue list -> jobs that went there
    gone: int = 0  # acked, or delivered again, since the jobs were listed
    left: list[Left] = field(default_factory=list)
    #: Stock consumers that were connected; None: the ACL forbids to ask.
    consumers: list[StockConsumer] | None = field(default_factory=list)
    dry_run: bool = False


def take_over(
    unacked: Unacked,
    routes: Routes,
    *,
    force: bool = False,
    otherwise: str = "",
    dry_run: bool = False,
) -> Migrated:
    """Move the unacked jobs to the front of their queues.

    Arguments:
        routes: finds the queue lists of a message.
        force: move them although stock consumers are connected, which may run them.
        otherwise: the queue for jobs whose exchange and routing key lead to none.
        dry_run: only count.

    Raises:
        StillInUse: a stock consumer is connected, or the ACL forbids to ask.
    """
    # The jobs are listed before the consumers: a worker that holds one of these jobs is connected,
    # and a worker that connects later holds none of them.
    tags = unacked.tags()
    report = Migrated(len(tags), consumers=unacked.consumers(), dry_run=dry_run)
    if tags and report.consumers != [] and not force and not dry_run:
        raise StillInUse(_refusal(report.consumers, len(tags)))
    queues = Queues(unacked.database)

    def way_of(message: Any, exchange: str, routing_key: str) -> tuple[Mapping[str, int], str]:
        """Return a message's queue lists -> ms of x-expires, and the reason for which it has to
        stay (empty if it can go)."""
        if message is None:
            return {}, "it is not a kombu message"
        lists = routes(message, exchange, routing_key)
        if not lists and otherwise:
            lists = routes(message, "", otherwise)
        if not lists:
            return {}, "no queue is bound to its exchange and routing key"
        if not all(queues.can_take([*lists])):
            return {}, _not_a_queue(lists)
        return lists, ""

    def leave(job: UnackedEntry, why: str) -> None:
        payload, exchange, routing_key = job.read()
        _, task, task_id, *_ = parse(payload)
        tag = job.tag.decode(errors="replace")
        report.left.append(Left(tag, why, task, task_id, exchange, routing_key))

    # Newest first, each to the front: the oldest is claimed next, also if another pass goes on.
    for some in chunks(tags, MIGRATE_BATCH):
        bound: dict[UnackedEntry, tuple[bytes, Mapping[str, int]]] = {}
        for job in unacked.read(some):
            payload, exchange, routing_key = job.read()
            message = parse(payload)[0]
            try:
                lists, why = way_of(message, exchange, routing_key)
            except (ConnectionError, TimeoutError):
                raise  # the server is away, which is no fault of this job
            except Exception as exc:
                if is_temporary(exc):
                    raise  # nor is a refusal of all commands (BUSY)
                # Whatever program wrote the entry chose its names and its priority. If an error
                # over one of them ended the command, no job after this one would ever move.
                lists, why = {}, f"its queue cannot be found: {class_name(exc)}: {message_of(exc)}"
            if why:
                leave(job, why)
            else:
                bound[job] = payload, lists
        outcomes = dict.fromkeys(bound, Moved.YES) if dry_run else unacked.move(bound)
        for job, outcome in outcomes.items():
            lists = bound[job][1]
            if outcome is Moved.YES:
                report.requeued += 1
                report.queues.update([*lists])
            elif outcome is Moved.NO_QUEUE:
                leave(job, _not_a_queue(lists))
    report.gone = report.found - report.requeued - len(report.left)
    return report


def _not_a_queue(lists: Mapping[str, int]) -> str:
    """Return why a job stays: one of its queue lists is a key of another type."""
    return f"{' or '.join(lists)} is not a queue: the key has another type"


def _refusal(consumers: list[StockConsumer] | None, jobs: int) -> str:
    unacked = f"{number(jobs, 'job')} {'is' if jobs == 1 else 'are'} unacked"
    if consumers is None:
        return (
            f"nothing was moved. {unacked}, and whether a stock worker holds them is unknown: "
            "the ACL forbids CLIENT LIST. Grant it to this user (+client|list), or make sure "
            "that no stock worker runs on this database, and add --force"
        )
    rows = "".join(f"\n  {consumer}" for consumer in consumers)
    return (
        f"nothing was moved. {unacked}, and stock workers that may hold them are connected to this "
        f"database:{rows}\n"
        "Stop the stock workers with SIGTERM and wait until they have ended (--wait SECONDS does "
        "that). The connection of a host that is gone stays for a while: end it with CLIENT KILL "
        "ID. Flower and other programs that use `inspect` look like stock workers: stop them for "
        "the moment. Or add --force: a job that its worker still holds then runs twice"
    )
