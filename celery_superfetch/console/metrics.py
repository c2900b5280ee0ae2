"""What there is to see as Prometheus metrics, and a server for them; needs the extra."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from time import monotonic
from typing import Any, TypeVar

from celery import Celery

from ..errors import ConfigError, SuperfetchError
from ..inspector import PATIENCE, Counts, Inspector, RunCounts, advice_for
from ..model import forks
from ..model.arguments import printable
from ..model.facts import HUNG, SILENT
from ..model.log_text import one_line_each
from ..model.words import passed
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
        f"metrics need what the extra `console` installs ({exc}): "
        "pip install 'celery-superfetch[console]'"
    ) from exc

T = TypeVar("T", CounterMetricFamily, GaugeMetricFamily)

#: Not Celery's: that one has a handler that says nothing, and an exporter sets up no other.
logger = one_line_each(logging.getLogger(__name__))

#: Seconds for which what was read is told again: several may scrape, and the server is asked once.
FRESH = 2.0

#: Counters by queue and task -> what they count.
JOBS = {
    "jobs_recovered": ("recovered", "Jobs of dead workers or pool processes that were given back"),
    "jobs_killed": ("killed", "Jobs, and unparseable items, that were moved to the dead set"),
    "jobs_requeued": ("requeued", "Jobs that were given back on purpose, by a stop above all"),
    "jobs_lost": ("lost", "Jobs that the server lost before a worker had started them"),
    "ownership_lost": ("ownership_lost", "Jobs that a process lost while it lived"),
}

#: What an owner can be; the last two are no living ones.
STATES = ("running", "stopping", SILENT, HUNG, "dead", "reaped")


class Metrics(Collector):
    """The metrics of an app's database; a scrape asks the server once, or not at all."""

    def __init__(self, app: Celery) -> None:
        Inspector.check_options(app)  # what makes no sense is said now, not at a scrape
        self.app = app
        self._lock = threading.Lock()
        self._asking, self._ended = threading.Thread(), -FRESH
        self._found: tuple[dict[str, Any], Counts, RunCounts] | None = None

    def collect(self) -> Iterator[Metric]:
        reading = self._read()
        text = "Whether the server could be asked; if not, it is all there is"
        yield _gauge("up", text, reading is not None)
        if reading is not None:
            yield from families(*reading)

    def _read(self) -> tuple[dict[str, Any], Counts, RunCounts] | None:
        with self._lock:
            if not self._asking.is_alive() and monotonic() >= self._ended + FRESH:
                # Nobody knows how long it takes: a thread can be left alone.
                self._asking = threading.Thread(
                    target=self._ask, name="superfetch-metrics", daemon=True
                )
                self._asking.start()
            asking = self._asking
        asking.join(PATIENCE)
        if asking.is_alive():
            logger.warning("Metrics: the broker has not answered for %g s.", PATIENCE)
            return None
        return self._found

    def _ask(self) -> None:
        forks.mark_thread()
        try:
            # It comes by code of Celery and kombu, whose locks a pool's child must not inherit.
            with forks.kept_off(), Inspector.of(self.app) as inspector:
                counts = inspector.history.counts(), inspector.runs.counts()
                self._found = overview_of(inspector), *counts
        except Exception as exc:
            self._found = None
            advice = "" if isinstance(exc, SuperfetchError) else advice_for(exc)
            why = f"{str(exc).rstrip('.')}: {advice}" if advice else exc
            logger.warning("Metrics could not ask the broker: %s", why)
        finally:
            self._ended = monotonic()


def families(overview: Mapping[str, Any], counts: Counts, runs: RunCounts) -> Iterator[Metric]:
    """An overview and the counters, as metrics."""
    queues = {row["list"]: row["queue"] for row in overview["queues"]}
    yield from _of_jobs(counts, queues)
    yield from _of_runs(runs, queues)
    for name, text in (
        ("owners_reaped", "Workers that were taken for dead"),
        ("dead_dropped", "Jobs that a cap, or their age, dropped from the dead set"),
    ):
        yield _metric(CounterMetricFamily, name, text, counts.totals.get(name, 0))
    yield from _of_owners(overview)
    yield from _of_queues(overview["queues"])
    yield _gauge("stock_unacked", "Jobs that stock workers have unacked", overview["unacked"])
    dead = overview["dead_set"]
    yield _gauge("dead_set_size", "Jobs in the dead set, of all apps", dead["size"])
    yield _gauge("dead_set_limit", "dead_limit of the app that is asked", dead["limit"])
    for field, text in (
        ("jobs", "Jobs of the app in the dead set; never_ran, junk: messages that no worker ran"),
        ("bytes", "Bytes of their records"),
    ):
        values = {kind: row[field] for kind, row in dead["kept"].items()}
        yield _gauge(f"dead_set_{field}", text, values, ["kind"])
    yield _gauge("unannounced", "Killed jobs whose callers are not told yet", dead["unannounced"])
    yield from _of_passes(overview["last_pass"], counts)
    now = overview["server_time"]
    ages = {printable(row["app"]): passed(row["at"], now) for row in overview["beats"]}
    yield _gauge("beat_age_seconds", "Since the last tick of an app's beat", ages, ["app"])
    tally = Counter((finding.level, finding.code) for finding in findings(overview))
    text = "What `superfetch status` finds; the codes stay"
    yield _gauge("findings", text, tally, ["level", "code"])


def _of_jobs(counts: Counts, queues: Mapping[str, str]) -> Iterator[Metric]:
    for name, (event, text) in JOBS.items():
        # What is always there lets an alert see the first one of all.
        rows: Counter[tuple[str, str]] = Counter({("", ""): 0})
        for (which, queue_list, task), number in counts.jobs.items():
            if which == event:
                rows[_queue(queue_list, queues), printable(task)] += number
        yield _metric(CounterMetricFamily, name, text, rows, ["queue", "task"])


def _of_runs(runs: RunCounts, queues: Mapping[str, str]) -> Iterator[Metric]:
    rows: Counter[tuple[str, ...]] = Counter()
    for (how, queue_list, task), number in runs.ends.items():
        rows[_queue(queue_list, queues), printable(task), how] += number
    text = "Runs that came to an end of their own, by how they ended"
    yield _metric(CounterMetricFamily, "runs", text, rows, ["queue", "task", "state"])
    text = "How long they took"
    family = HistogramMetricFamily("superfetch_run_seconds", text, labels=["task"])
    for task, times in runs.times.items():
        family.add_metric([printable(task)], _buckets(times.buckets), times.seconds)
    yield family


def _queue(queue_list: str, queues: Mapping[str, str]) -> str:
    return printable(queues.get(queue_list, queue_list.partition(Inspector.separator)[0]))


def _buckets(buckets: Mapping[float, int]) -> list[tuple[str, float]]:
    return [("+Inf" if at == inf else str(at), number) for at, number in buckets.items()]


def _of_owners(overview: Mapping[str, Any]) -> Iterator[Metric]:
    owners, left = overview["owners"], overview["tombstones"]
    states = Counter(dict.fromkeys(STATES, 0))
    for owner in owners:
        is_dead = owner["verdict"] == "dead" and owner["state"] != HUNG
        states["dead" if is_dead else owner["state"]] += 1
    states["reaped"] += left["owners"]
    yield _gauge("owners", "Workers by state; reaped ones for a minute", states, ["state"])
    kinds = "running", "reserved"
    held = Counter({state: sum(owner[state] for owner in owners) for state in kinds})
    held["left"] = left["in_flight"]
    text = "Jobs in flight; left: of reaped workers, and not moved yet"
    yield _gauge("in_flight", text, held, ["state"])
    # What is always there lets an alert see the first one of all.
    long = Counter({"": 0})
    long.update(printable(job["task"]) for owner in owners for job in owner["long_runs"])
    yield _gauge("long_running_jobs", "Jobs that run for hours", long, ["task"])


def _of_queues(rows: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    queues = by_queue({**row, "queue": printable(row["queue"])} for row in rows)
    for name, field, text in (
        ("queue_length", "waiting", "Jobs that wait, on all priorities"),
        ("queue_oldest_seconds", "oldest", "How long the next job was seen to be the next"),
        ("queue_consumers", "consumers", "Running workers that consume it"),
        ("probation", "probation", "Jobs on probation, which are not in the queue"),
        ("parked", "parked", "Jobs that wait for their time, which are not in the queue"),
    ):
        values = {row["queue"]: row[field] for row in queues if row[field] is not None}
        yield _gauge(name, text, values, ["queue"])


def _of_passes(last: Mapping[str, Any] | None, counts: Counts) -> Iterator[Metric]:
    passes = Counter(counts.passes)
    yield HistogramMetricFamily(
        "superfetch_recovery_seconds",
        "From the last heartbeat of a dead worker until its jobs were back",
        _buckets(counts.recoveries.buckets),
        counts.recoveries.seconds,
    )
    yield SummaryMetricFamily(
        "superfetch_pass_seconds", "Passes over all workers", passes["number"], passes["ms"] / 1000
    )
    text = "Workers that passes have looked at"
    yield _metric(CounterMetricFamily, "pass_owners", text, passes["owners"])
    yield _metric(CounterMetricFamily, "pass_errors", "What passes survived", passes["errors"])
    if last is not None:
        yield _gauge("last_pass_age_seconds", "Since the last pass over all workers", last["age"])


def _metric(kind: type[T], name: str, text: str, value: Any, labels: Sequence[str] = ()) -> T:
    """One value, or one for each label, or each tuple of them."""
    family = kind(f"superfetch_{name}", text, labels=labels)
    for key, number in value.items() if labels else [((), value)]:
        family.add_metric([key] if isinstance(key, str) else key, number)
    return family


_gauge = partial(_metric, GaugeMetricFamily)


def text_of(app: Celery) -> str:
    """All of them, as a scrape gets them; raises ConfigError."""
    return generate_latest(_registry(app)).decode()


def serve(app: Celery, host: str, port: int) -> MetricsServer:
    """Serve the metrics in threads; ``shutdown`` ends that. Raises ConfigError, and an OSError
    where it cannot listen: mostly, at a port in use."""
    server = MetricsServer(make_wsgi_app(_registry(app)), host, port)
    threading.Thread(target=server.serve, name="superfetch-metrics-server", daemon=True).start()
    return server


def _registry(app: Celery) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(Metrics(app))
    return registry
