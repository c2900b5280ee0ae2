"""Takes over the jobs that stock kombu's workers have left unacked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import StillInUse
from ..model.job import parse
from ..store.unacked import Delivery, StockConsumer, StockJob, Unacked

BATCH = 100  # jobs read and moved in one round trip

#: Message, exchange and routing key -> its queue lists -> ms of x-expires; none: it goes nowhere.
Routes = Callable[[Mapping[str, Any], str, str], Mapping[str, int]]


@dataclass
class Left:
    tag: str
    why: str
    task: str | None = None
    task_id: str | None = None
    exchange: str = ""
    routing_key: str = ""

    @classmethod
    def of(cls, job: StockJob, why: str) -> Left:
        tag, known = job.delivery.tag.decode(errors="replace"), parse(job.payload)
        return cls(tag, why, known.task, known.task_id, job.exchange, job.routing_key)


@dataclass
class Migrated:
    """What one pass found and did; its fields are those of ``--json``."""

    found: int = 0
    taken: int = 0
    queues: Counter[str] = field(default_factory=Counter)  # queue list -> jobs that went there
    copied: int = 0  # to several queues: stock does not say which of them had delivered it
    younger: int = 0  # delivered later than asked for
    gone: int = 0  # acked, or delivered anew, while we looked
    left: list[Left] = field(default_factory=list)
    #: Those that were connected; None: the server may not be asked.
    consumers: list[StockConsumer] | None = field(default_factory=list)
    dry_run: bool = False


def take_over(
    unacked: Unacked,
    routes: Routes,
    *,
    force: bool = False,
    older_than: float = 0.0,
    otherwise: str = "",
    dry_run: bool = False,
) -> Migrated:
    """Take over what nobody can hold any more, and was delivered more than ``older_than`` seconds
    ago; raises StillInUse if the former is not sure. ``otherwise``: the queue for jobs whose
    exchange and routing key lead to none."""
    # The jobs first: whoever held one of these and still lives is still connected, and whoever
    # connects later holds none of them.
    deliveries = unacked.deliveries()
    report = Migrated(len(deliveries), consumers=unacked.consumers(), dry_run=dry_run)
    if deliveries and report.consumers != [] and not force and not dry_run:
        raise StillInUse(_refusal(report.consumers, len(deliveries)))
    if older_than:
        until = unacked.database.server_time() // 1000 - older_than
        deliveries = [one for one in deliveries if one.since < until]
        report.younger = report.found - len(deliveries)
    # Newest first, each to the front: the oldest is claimed next, also if another pass goes on.
    for at in range(0, len(deliveries), BATCH):
        _take_batch(unacked, deliveries[at : at + BATCH], routes, otherwise, report)
    return report


def _take_batch(
    unacked: Unacked, batch: list[Delivery], routes: Routes, otherwise: str, report: Migrated
) -> None:
    found, bound = unacked.read(batch), []
    report.gone += len(batch) - len(found)
    for job in found:
        if (message := parse(job.payload).message) is None:
            report.left.append(Left.of(job, "it is not a kombu message"))
            continue
        lists = routes(message, job.exchange, job.routing_key)
        if not lists and otherwise:
            lists = routes(message, "", otherwise)
        if lists:
            bound.append((job, lists))
        else:
            report.left.append(Left.of(job, "no queue is bound for it"))
    outcomes = [b"ok"] * len(bound) if report.dry_run else unacked.move(bound)
    for (job, lists), outcome in zip(bound, outcomes, strict=True):
        if outcome == b"ok":
            report.taken += 1
            report.queues.update(list(lists))
            report.copied += len(lists) > 1
        elif outcome == b"gone":
            report.gone += 1
        else:
            why = f"{' or '.join(lists)} is no queue, the key holds something else"
            report.left.append(Left.of(job, why))


def _refusal(consumers: list[StockConsumer] | None, jobs: int) -> str:
    if consumers is None:
        return (
            f"nothing was moved. {jobs} jobs are unacked, and who holds them cannot be known: "
            "CLIENT LIST is forbidden. Allow it to this user (+client|list), or make sure that no "
            "stock worker runs on this database, and add --force"
        )
    rows = "".join(f"\n  {consumer}" for consumer in consumers)
    return (
        f"nothing was moved. {jobs} jobs are unacked, and connections that consume as stock "
        f"workers do are open on this database. Their workers may hold these jobs:{rows}\n"
        "Stop the stock workers by TERM and wait until they have ended (--wait SECONDS waits for "
        "it). A machine that is gone for good leaves its connection for a while: CLIENT KILL ID. "
        "Flower, and whatever else asks `inspect`, looks the same: stop it for the moment. Or, if "
        "no job runs as long as N seconds: --force --older-than N. A job that its worker still "
        "holds then runs twice"
    )
