"""Takes over the jobs that stock kombu's workers have left unacked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import StillInUse
from ..store.unacked import Delivery, StockConsumer, StockJob, Unacked

#: Jobs read and moved in one round trip.
BATCH = 100

#: A message, its exchange and routing key -> its queue lists -> ms of their x-expires; with none
#: where the job cannot go anywhere.
Routes = Callable[[Mapping[str, Any], str, str], Mapping[str, int]]


@dataclass
class Left:
    """A job that stays in the hash, and why."""

    tag: str
    task: str | None
    task_id: str | None
    exchange: str
    routing_key: str
    why: str


@dataclass
class Migrated:
    """What one pass found and did."""

    found: int = 0
    taken: int = 0
    #: Queue list -> jobs that went there.
    queues: Counter[str] = field(default_factory=Counter)
    #: Jobs that went to several queues: which of them had delivered it, stock does not say.
    copied: int = 0
    #: Jobs that were delivered later than asked for.
    younger: int = 0
    #: Acked, or delivered anew, while we looked.
    gone: int = 0
    left: list[Left] = field(default_factory=list)
    #: Consumers that were connected; None: the server may not be asked.
    consumers: list[StockConsumer] | None = field(default_factory=list)
    dry_run: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "queues": dict(self.queues)}


class Migration:
    """One pass over the hash; holds no loop and no thread.

    Arguments:
        routes: where kombu would put a message.
    """

    def __init__(self, unacked: Unacked, routes: Routes) -> None:
        self.unacked = unacked
        self.routes = routes

    def run(
        self,
        *,
        force: bool = False,
        older_than: float = 0.0,
        otherwise: str = "",
        dry_run: bool = False,
    ) -> Migrated:
        """Take over what nobody can hold any more.

        Arguments:
            force: also while stock consumers are connected.
            older_than: only jobs that were delivered more than so many seconds ago.
            otherwise: queue for jobs whose exchange and routing key lead to none.
            dry_run: count, change nothing.

        Raises:
            StillInUse: a stock consumer is connected, or the server may not be asked.
            redis.exceptions.RedisError: the server could not be asked, or refused.
        """
        report = Migrated(dry_run=dry_run)
        # The jobs first, the consumers after: whoever connects later holds none of these, and
        # whoever held one of these and still lives is still connected.
        deliveries = self.unacked.deliveries()
        report.found = len(deliveries)
        report.consumers = self.unacked.consumers()
        if deliveries and report.consumers != [] and not force and not dry_run:
            raise StillInUse(_refusal(report.consumers, len(deliveries)))
        if older_than:
            seconds = self.unacked.database.server_time() // 1000
            old = [one for one in deliveries if one.since < seconds - older_than]
            report.younger = len(deliveries) - len(old)
            deliveries = old
        # Newest first, each to the front of its queue: the oldest is claimed next, also when
        # this pass is killed and another goes on.
        for at in range(0, len(deliveries), BATCH):
            self._batch(deliveries[at : at + BATCH], otherwise, report)
        return report

    def _batch(self, deliveries: list[Delivery], otherwise: str, report: Migrated) -> None:
        jobs: list[tuple[StockJob, Mapping[str, int]]] = []
        for delivery, value in zip(deliveries, self.unacked.read(deliveries), strict=True):
            if value is None:
                report.gone += 1
                continue
            job = StockJob.parse(delivery, value)
            if job is None:
                report.left.append(_left(delivery, None, "it is not a kombu message"))
                continue
            lists = self.routes(job.message, job.exchange, job.routing_key)
            if not lists and otherwise:
                lists = self.routes(job.message, "", otherwise)
            if lists:
                jobs.append((job, lists))
            else:
                report.left.append(_left(delivery, job, "no queue is bound for it"))
        if not jobs:
            return
        outcomes = [b"ok"] * len(jobs)
        if not report.dry_run:
            outcomes = self.unacked.move(jobs)
        for (job, lists), outcome in zip(jobs, outcomes, strict=True):
            if outcome == b"ok":
                report.taken += 1
                report.queues.update(list(lists))
                report.copied += len(lists) > 1
            elif outcome == b"gone":
                report.gone += 1
            else:
                why = f"{' or '.join(lists)} is no queue, the key holds something else"
                report.left.append(_left(job.delivery, job, why))


def _left(delivery: Delivery, job: StockJob | None, why: str) -> Left:
    headers = (job.message.get("headers") if job else None) or {}
    return Left(
        tag=delivery.tag.decode(errors="replace"),
        task=headers.get("task"),
        task_id=headers.get("id"),
        exchange=job.exchange if job else "",
        routing_key=job.routing_key if job else "",
        why=why,
    )


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
