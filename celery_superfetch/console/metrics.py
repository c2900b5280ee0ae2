"""The overview of an app's database as Prometheus metrics, and a server for them.

`superfetch metrics` calls ``serve`` or ``text_of``; it needs the extra `console`. It only reads.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from time import monotonic
from typing import Any, TypeVar

from celery import Celery

from ..errors import ConfigError, SuperfetchError
from ..inspector import READER_TIMEOUT_S, Counts, Inspector, RunSums, advice_for, trouble_of
from ..model import fork_gate
from ..model.arguments import printable
from ..model.humanize import passed
from ..model.log_text import one_line_each
from ..model.owner_record import HUNG, SILENT
from .health import findings
from .metrics_server import MetricsServer
from .overview import by_queue, overview_of

try:
    from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
        SummaryMetricFamily,
    )
    from prometheus_client.registry import Collector
except ImportError as exc:
    raise ConfigError(
        f"metrics need the packages of the extra `console` ({exc}): pip install "
        "'celery-superfetch[console]'"
    ) from exc

T = TypeVar("T", CounterMetricFamily, GaugeMetricFamily)

#: Not a logger of Celery's: its handler writes nothing, and an exporter sets up no other.
logger = one_line_each(logging.getLogger(__name__))

#: Seconds for which one reading answers all scrapes: the server is asked once for several.
READING_S = 2.0

#: Name of a counter by queue and task -> (its event, its help).
JOB_COUNTERS = {
    "jobs_recovered": ("recovered", "Jobs of dead workers or pool processes that were recovered"),
    "jobs_killed": ("killed", "Jobs, and unparseable items, that were moved to the dead set"),
    "jobs_requeued": (
        "requeued",
        "Jobs requeued without a strike, mostly because their worker was stopping",
    ),
    "jobs_lost": ("lost", "Jobs that the server lost before a worker had started them"),
    "ownership_lost": ("ownership_lost", "Jobs of which a living worker lost the ownership"),
}

#: Kind and name of a metric of the server, its field in the overview, and its help.
SERVER_FIGURES: tuple[tuple[Any, str, str, str], ...] = (
    (GaugeMetricFamily, "uptime_seconds", "uptime_s", "Time since the Redis server started"),
    (GaugeMetricFamily, "memory_bytes", "used_memory", "Memory that the server uses"),
    (GaugeMetricFamily, "memory_limit_bytes", "maxmemory", "Its maxmemory; 0: it has none"),
    (GaugeMetricFamily, "connections", "connections", "Connections of clients"),
    (GaugeMetricFamily, "connections_limit", "maxclients", "Its maxclients"),
    (
        CounterMetricFamily,
        "connections_rejected",
        "rejected_connections",
        "Connections refused for maxclients since its start",
    ),
    (CounterMetricFamily, "evicted_keys", "evicted_keys", "Keys evicted since its start"),
    (
        GaugeMetricFamily,
        "last_save_timestamp_seconds",
        "last_save",
        "Time of its last RDB save, or of its start",
    ),
    (GaugeMetricFamily, "replicas", "replicas", "Connected replicas"),
    (
        GaugeMetricFamily,
        "replica_lag_bytes",
        "replica_lag_bytes",
        "Bytes by which the slowest replica is behind",
    ),
)

QueueOf = Callable[[str], str]  # returns the queue of a queue list

#: States of an owner; owners in the last two do not live.
OWNER_STATES = ("running", "stopping", SILENT, HUNG, "dead", "reaped")


class Metrics(Collector):
    """The metrics of an app's database; a scrape asks the server once, or not at all."""

    def __init__(self, app: Celery) -> None:
        Inspector.check_options(app)  # an error in them is raised now, not at a scrape
        self.app = app
        self._lock = threading.Lock()
        self._asking, self._ended = threading.Thread(), -READING_S
        self._found: tuple[dict[str, Any], Counts, RunSums, QueueOf] | None = None

    def collect(self) -> Iterator[Metric]:
        reading = self._read()
        text = "Whether the server could be read; if not, it is the only metric"
        yield _gauge("up", text, reading is not None)
        if reading is not None:
            yield from families(*reading)

    def _read(self) -> tuple[dict[str, Any], Counts, RunSums, QueueOf] | None:
        with self._lock:
            if not self._asking.is_alive() and monotonic() >= self._ended + READING_S:
                # In a thread, so that a scrape does not wait for a server that hangs.
                self._asking = threading.Thread(
                    target=self._read_database, name="superfetch-metrics", daemon=True
                )
                self._asking.start()
            asking = self._asking
        asking.join(READER_TIMEOUT_S)
        if asking.is_alive():
            logger.warning(
                "Metrics are not available: the broker has not answered for %g s. "
                "Check whether Redis answers.",
                READER_TIMEOUT_S,
            )
            return None
        return self._found

    def _read_database(self) -> None:
        fork_gate.mark_thread()
        try:
            # This runs code of Celery and kombu, whose locks a child process must not inherit.
            with fork_gate.kept_off(), Inspector.of(self.app) as inspector:
                counts = inspector.stats.counts(), inspector.runs.counts()
                queue_of = inspector.database.list_names.queue
                self._found = overview_of(inspector), *counts, queue_of
        except Exception as exc:
            self._found = None
            advice = "" if isinstance(exc, SuperfetchError) else advice_for(exc)
            why = f"{str(exc).rstrip('.')}: {advice}" if advice else exc
            logger.warning("Metrics are not available: %s: %s", trouble_of(exc), why)
        finally:
            self._ended = monotonic()


def families(
    overview: Mapping[str, Any], counts: Counts, runs: RunSums, queue_of: QueueOf
) -> Iterator[Metric]:
    """Yield an overview and the counters as metrics."""
    yield from _of_jobs(counts, queue_of)
    yield from _of_runs(runs, queue_of)
    for name, text in (
        ("owners_reaped", "Workers that were declared dead"),
        ("dead_dropped", "Jobs deleted from the dead set for its limits or their age"),
    ):
        yield _metric(CounterMetricFamily, name, text, counts.totals.get(name, 0))
    yield from _of_owners(overview)
    yield from _of_queues(overview["queues"], overview["server_time"])
    yield _gauge("stock_unacked", "Jobs that stock workers have unacked", overview["unacked"])
    dead = overview["dead_set"]
    yield _gauge("dead_set_size", "Jobs in the dead set, of all apps", dead["size"])
    yield _gauge("dead_set_limit", "The option dead_limit of this app", dead["limit"])
    for field, text in (
        ("jobs", "Jobs of the app in the dead set; never_ran, junk: messages that no worker ran"),
        ("bytes", "Bytes of their records"),
    ):
        values = {kind: row[field] for kind, row in dead["caps"].items()}
        yield _gauge(f"dead_set_{field}", text, values, ["kind"])
    yield _gauge(
        "unannounced", "Dead jobs whose failure notification is pending", dead["unannounced"]
    )
    yield from _of_passes(overview["last_pass"], counts)
    yield from _of_server(overview["server"])
    now = overview["server_time"]
    ages = {printable(row["app"]): passed(row["at"], now) for row in overview["beats"]}
    yield _gauge("beat_age_seconds", "Time since the last tick of an app's beat", ages, ["app"])
    tally = Counter((finding.level, finding.code) for finding in findings(overview))
    text = "Findings of the command `status`; their codes do not change"
    yield _gauge("findings", text, tally, ["level", "code"])


def _of_jobs(counts: Counts, queue_of: QueueOf) -> Iterator[Metric]:
    for name, (event, text) in JOB_COUNTERS.items():
        # A series that exists from the start lets an alert see the first event.
        rows: Counter[tuple[str, str]] = Counter({("", ""): 0})
        for (which, queue_list, task), number in counts.jobs.items():
            if which == event:
                rows[printable(queue_of(queue_list)), printable(task)] += number
        yield _metric(CounterMetricFamily, name, text, rows, ["queue", "task"])


def _of_runs(runs: RunSums, queue_of: QueueOf) -> Iterator[Metric]:
    rows: Counter[tuple[str, ...]] = Counter()
    for (how, queue_list, task), number in runs.ends.items():
        rows[printable(queue_of(queue_list)), printable(task), how] += number
    text = "Runs that ended, by state"
    yield _metric(CounterMetricFamily, "runs", text, rows, ["queue", "task", "state"])
    text = "Duration of runs"
    family = HistogramMetricFamily("superfetch_run_seconds", text, labels=["task"])
    for task, times in runs.times.items():
        family.add_metric([printable(task)], _buckets(times.buckets), times.seconds)
    yield family


def _buckets(buckets: Mapping[float, int]) -> list[tuple[str, float]]:
    return [("+Inf" if at == inf else str(at), number) for at, number in buckets.items()]


def _of_owners(overview: Mapping[str, Any]) -> Iterator[Metric]:
    owners, left = overview["owners"], overview["tombstones"]
    states = Counter(dict.fromkeys(OWNER_STATES, 0))
    for owner in owners:
        is_dead = owner["verdict"] == "dead" and owner["state"] != HUNG
        states["dead" if is_dead else owner["state"]] += 1
    states["reaped"] += left["owners"]
    yield _gauge("owners", "Workers by state; reaped ones for a minute", states, ["state"])
    kinds = "running", "reserved"
    held = Counter({state: sum(owner[state] for owner in owners) for state in kinds})
    held["left"] = left["in_flight"]
    text = "Jobs in flight; left: of dead workers, and not recovered yet"
    yield _gauge("in_flight", text, held, ["state"])
    runs = Counter[str]()
    for owner in owners:
        name = printable(owner["node"] or owner["owner"])
        runs[name] = max(runs[name], owner["longest_run"] or 0)
    text = "How long the oldest run of a worker has lasted; 0: less than a heartbeat interval"
    yield _gauge("longest_run_seconds", text, runs, ["worker"])
    for name, field, text in (
        ("worker_memory_bytes", "memory", "Memory of a worker and its pool processes"),
        ("worker_uptime_seconds", "age", "Time since a worker registered"),
    ):
        values = {
            printable(owner["node"] or owner["owner"]): owner[field]
            for owner in owners
            if owner[field]
        }
        yield _gauge(name, text, values, ["worker"])
    # A series that exists from the start lets an alert see the first event.
    long = Counter({"": 0})
    long.update(printable(job["task"]) for owner in owners for job in owner["long_runs"])
    yield _gauge("long_running_jobs", "Long-running jobs", long, ["task"])


def _of_queues(rows: Iterable[Mapping[str, Any]], now: str) -> Iterator[Metric]:
    queues = by_queue({**row, "queue": printable(row["queue"])} for row in rows)
    for name, field, text in (
        ("queue_length", "waiting", "Waiting jobs, of all priorities"),
        ("queue_oldest_seconds", "oldest", "How long the oldest job has been seen waiting"),
        ("queue_consumers", "consumers", "Running workers that consume it"),
        ("probation", "probation", "Jobs on probation, which are not in the queue"),
        ("parked", "parked", "Scheduled jobs, which are not in the queue"),
    ):
        values = {row["queue"]: row[field] for row in queues if row[field] is not None}
        yield _gauge(name, text, values, ["queue"])
    due = {row["queue"]: -passed(row["next_due"], now) for row in queues if row["next_due"]}
    text = "Time until the next scheduled job is due; below 0: no worker has moved it to its queue"
    yield _gauge("parked_next_due_seconds", text, due, ["queue"])
    paused = {row["queue"]: int(row["paused"] is not None) for row in queues}
    yield _gauge("queue_paused", "Whether the queue is paused", paused, ["queue"])


def _of_passes(last: Mapping[str, Any] | None, counts: Counts) -> Iterator[Metric]:
    passes = Counter(counts.passes)
    yield HistogramMetricFamily(
        "superfetch_recovery_seconds",
        "Time from the last heartbeat of a dead worker until its jobs were recovered",
        _buckets(counts.recoveries.buckets),
        counts.recoveries.seconds,
    )
    yield SummaryMetricFamily(
        "superfetch_pass_seconds",
        "Reap passes over all workers",
        passes["number"],
        passes["ms"] / 1000,
    )
    text = "Workers that reap passes have examined"
    yield _metric(CounterMetricFamily, "pass_owners", text, passes["owners"])
    yield _metric(CounterMetricFamily, "pass_errors", "Errors of reap passes", passes["errors"])
    if last is not None:
        yield _gauge(
            "last_pass_age_seconds", "Time since the last reap pass over all workers", last["age"]
        )


def _of_server(server: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield the figures of the server, without those that it does not tell."""
    for kind, name, field, text in SERVER_FIGURES:
        if (figure := server[field]) is not None:
            yield _metric(kind, f"server_{name}", text, figure)


def _metric(kind: type[T], name: str, text: str, value: Any, labels: Sequence[str] = ()) -> T:
    """Make a metric of one value; with ``labels``, of a mapping from each label (or tuple of
    labels) to its value."""
    family = kind(f"superfetch_{name}", text, labels=labels)
    for key, number in value.items() if labels else [((), value)]:
        family.add_metric([key] if isinstance(key, str) else key, number)
    return family


_gauge = partial(_metric, GaugeMetricFamily)


def text_of(app: Celery) -> str:
    """Return all metrics as a scrape gets them; ConfigError."""
    return generate_latest(_registry(app)).decode()


def serve(app: Celery, host: str, port: int) -> MetricsServer:
    """Serve the metrics in threads until ``shutdown``. Raises ConfigError, and an OSError where it
    cannot listen: mostly, at a port in use."""
    server = MetricsServer(make_wsgi_app(_registry(app)), host, port)
    threading.Thread(target=server.serve, name="superfetch-metrics-server", daemon=True).start()
    return server


def _registry(app: Celery) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(Metrics(app))
    return registry
