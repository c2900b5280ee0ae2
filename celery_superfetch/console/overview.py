"""The state of an app's database as one plain document: owners, queues, the dead set, the server.

`status`, `check`, `doctor`, `queue show`, `jobs revoke`, the page and the metrics call
``overview_of``. Other views call the functions that make its rows. It only reads: a death leaves
nothing behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from redis.exceptions import ResponseError

from ..inspector import (
    RESERVED,
    SERIES_MAX,
    STATES,
    InFlightCounts,
    Inspector,
    JobPlace,
    Pause,
)
from ..model.dead_job import DeadJob, utc
from ..model.humanize import command
from ..model.job import claim_number, digest, parse
from ..model.owner_record import HUNG, SILENT, STOPPING, OwnerRecord
from ..model.records import real, whole
from ..model.verdict import MISSED_HEARTBEATS, Reason
from .finding import accepted
from .server_state import server_state

#: Fields of an owner's record that are copied to its row.
RECORD_FIELDS = (
    *("owner", "node", "app", "version", "state", "heartbeat_interval", "owner_ttl"),
    *("pool_name", "slots", "memory"),
)

CANCELLED = "cancelled"  # state of an owner for a queue whose consumer it cancelled

SEVERITIES = ("critical", "warning", "ok")  # of an owner, the worst first

CAP_NEARLY_FULL = 0.8  # share of a cap of the dead set from which on it is nearly full

#: Deaths in the document, the latest ones.
DEATHS_SHOWN = 10

#: Seconds of a run from which on its job is reported as long-running: the time limit that the guide
#: for long jobs proposes. Celery reports no such runs, and ends none without a time limit.
LONG_RUN_S = 4 * 3600

#: Jobs that one round trip reads to name those that are long-running.
LONG_RUNS_BATCH = 1000

#: Seconds for which a worker's death without a successor, or a dead-lettered job, is reported.
LATELY_S = 3600

#: Seconds after which a scheduled job that is due counts as left behind. A worker moves due jobs
#: once a second, and due jobs that a dead worker has parked within six seconds.
OVERDUE_S = 10


def overview_of(inspector: Inspector) -> dict[str, Any]:
    """Read a database, and return the document."""
    now = inspector.database.server_time()
    judged = inspector.judged()
    owners = [row for row, _ in owner_rows(inspector, judged, now)]
    long_runs = _long_runs(inspector, [record for record, _, _ in judged], now)
    successors = _successors([record for record, _, _ in judged])
    for owner in owners:
        owner["long_runs"] = long_runs[owner["owner"]]
        # The latest id under which its process is registered; None: this is the latest.
        owner["successor"] = successors.get(owner["owner"])
    served = consumers_of(owners)
    tombstones = inspector.registry.records(inspector.registry.tombstones())
    left = inspector.in_flight_jobs.counts([*tombstones])
    owners_lists = {n for row in owners for n in row["queues"]}
    owners_lists |= {n for record in tombstones.values() for n in record.lists}
    deaths, last = inspector.stats.deaths(DEATHS_SHOWN), _last_pass(inspector, now)
    counts = inspector.stats.counts()
    queues = queue_rows(inspector, owners_lists, served, now)
    return {
        "command": command(),
        "accepted_findings": accepted(inspector.database.config.accepted_findings),
        "server": server_state(inspector),
        "server_time": utc(now / 1000),
        "owners": owners,
        # Jobs here landed late or could not be moved; the next pass drains them.
        "tombstones": {
            "owners": len(tombstones),
            "in_flight": sum(held.in_flight for held in left.values()),
        },
        "queues": queues,
        # Connections of stock workers, asked for if they may consume a queue that no worker of this
        # package has consumed: Redis does not say which queues they consume.
        "stock_consumers": _stock_consumers(inspector, queues),
        "dead_set": {
            "size": len(inspector.dead_set),
            "of_app": inspector.dead_set.count_of_app(),
            "limit": inspector.database.config.dead_limit,
            "unannounced": inspector.dead_set.unannounced_count(),
            **_killed(inspector, now),
            "caps": _cap_usage(inspector),
        },
        # Jobs whose runs stops of their workers cut short again and again.
        "stopped": [
            {**job, "queue": inspector.database.queue_of(job["queue_list"])}
            for job in inspector.strikes.stopped()
        ],
        # Keys that another program wrote: what they should hold is shown as empty.
        "wrong_keys": [
            wrong._asdict()
            for wrong in inspector.key_types.wrong(
                [row["list"] for row in queues], [row["owner"] for row in owners]
            )
        ],
        # Of stock workers: the jobs that they run, and those that killed ones left.
        "unacked": inspector.unacked.size(),
        # Series for the charts: beyond the limit a new queue has none.
        "chart_series": {"count": inspector.minutes.series_count(), "limit": SERIES_MAX},
        "beats": inspector.stats.beats(),
        "deaths": [{**death, "at": utc(death["at"] / 1000)} for death in deaths],
        "counters": counts.totals,
        # Jobs that the server no longer had when a worker wanted to requeue them: those of the
        # latest event, which ends with an hour without a loss; and all since the counters began.
        "lost": {
            "jobs": counts.losses.jobs,
            "since": _utc_of_ms(counts.losses.since),
            "at": _utc_of_ms(counts.losses.last),
            "ever": counts.totals.get("lost", 0),
        },
        # Time at which a worker last found that the server had lost its record.
        "data_lost": _utc_of_ms(counts.data_loss),
        "last_pass": last,
        # As the last pass recorded it; before the first pass, the reader's own option.
        "reap_interval": (last and last["interval"]) or inspector.database.config.reap_interval,
    }


def reap_interval_of(inspector: Inspector, now: int) -> float:
    """Return the interval of reap passes (s): as the last pass recorded it; before the first pass,
    the reader's own option."""
    last = _last_pass(inspector, now)
    return float((last and last["interval"]) or inspector.database.config.reap_interval)


def _utc_of_ms(at: int) -> str | None:
    return utc(at / 1000) if at else None


def consumers_of(owners: Iterable[Mapping[str, Any]]) -> dict[str, Counter[str]]:
    """Return, for each queue list, how many owners that registered it are in which state.

    Only those in the state ``running`` start jobs. A stopping worker claims nothing more, a hung
    one cannot, of a stale one nothing is known, and a worker whose consumer of the queue was
    cancelled (``cancel_consumer``) keeps the list in its record.
    """
    states_by_list: dict[str, Counter[str]] = {}
    for row in owners:
        if row["verdict"] != "dead":
            for name in row["queues"]:
                state = CANCELLED if name in row["unconsumed"] else row["state"]
                states_by_list.setdefault(name, Counter())[state] += 1
    return states_by_list


def _killed(inspector: Inspector, now: int) -> dict[str, Any]:
    """Return the number of lately dead-lettered jobs, and the latest of them."""
    lately = inspector.dead_set.died_since(now - LATELY_S * 1000)
    newest = None
    for job in inspector.dead_set.page(0, 1) if lately else ():
        if job.died is None:  # its time of death makes no sense
            continue
        newest = {name: getattr(job, name) for name in ("id", "task", "task_id", "reason")}
        newest["at"] = utc(job.died)
    return {"killed_lately": lately, "newest": newest}


def _cap_usage(inspector: Inspector) -> dict[str, dict[str, Any]]:
    """Return the use of each cap of the dead set: of jobs that ran, that never ran, and of junk. If
    one of the latter two is nearly full, name the task or reason of most of its newest."""
    rows = {}
    for cap, jobs, size in inspector.dead_set.usage():
        row: dict[str, Any] = {"jobs": jobs, "bytes": size}
        row |= {"most_jobs": cap.most_jobs, "most_bytes": cap.most_bytes}
        is_near = jobs >= CAP_NEARLY_FULL * cap.most_jobs or (
            cap.most_bytes and size >= CAP_NEARLY_FULL * cap.most_bytes
        )
        if cap.most_bytes and is_near:
            row["flood"] = _flood(inspector.dead_set.sample(cap))
        rows[cap.kind] = row
    return rows


def _flood(newest: Sequence[DeadJob]) -> dict[str, Any]:
    """Name the task of most of some jobs; if no task has more than half, the reason of most."""
    tasks, reasons = (Counter(getattr(job, of) for job in newest) for of in ("task", "reason"))
    for name, counter in (("task", tasks), ("reason", reasons)):
        for value, count in counter.most_common(1):
            if value is not None and (name == "reason" or 2 * count > len(newest)):
                return {name: value}
    return {}


def owner_rows(
    inspector: Inspector, judged: Sequence[tuple[OwnerRecord, int, Reason]], now: int
) -> list[tuple[dict[str, Any], InFlightCounts]]:
    """Return a row for each owner, with its score and verdict, and its in-flight counts."""
    held = inspector.in_flight_jobs.counts([record.owner for record, _, _ in judged])
    return [
        (_row(record, score, now, verdict, held[record.owner]), held[record.owner])
        for record, score, verdict in judged
    ]


def _row(
    record: OwnerRecord, score: int, now: int, verdict: Reason, held: InFlightCounts
) -> dict[str, Any]:
    age, reason = max(0, now - score) / 1000, verdict.value
    # Only workers watch heartbeats. This process has the age of the last one alone.
    if verdict is Reason.HEARD and state_of(record, age) == SILENT:
        reason = (
            f"no heartbeat for {age:.0f} s; another worker declares it dead once it has watched "
            "that for long enough, owner_ttl at most"
        )
    return {
        **{name: getattr(record, name) for name in RECORD_FIELDS},
        "state": record.state if verdict.dead else state_of(record, age),
        **{name: getattr(held, name) for name in ("in_flight", *STATES[:2])},
        "host": record.process.host,
        "pid": record.process.pid,
        "heartbeat_age": age,
        # Since it registered.
        "age": max(0, now - record.registered_at) / 1000,
        "queues": sorted(record.lists),
        "unconsumed": sorted(record.unconsumed),
        # For how long (s) it has been stopping; None: it is not.
        "stopping_for": _stopping_for(record, now),
        # For how long (s) its oldest run has lasted, by its host's clock; None: less than a
        # heartbeat interval.
        "longest_run": _longest_run(record, now),
        "verdict": "dead" if verdict.dead else "alive",
        "reason": reason,
    }


def _successors(records: Iterable[OwnerRecord]) -> dict[str, str]:
    """Return the former id of a worker -> its latest id, for each process that is registered under
    several. (Workers of different names in one process are different workers.)"""
    ids: dict[object, list[str]] = {}
    for record in sorted(records, key=lambda record: record.registered_at):
        worker = replace(record.process, image=""), record.app, record.node
        ids.setdefault(worker, []).append(record.owner)
    return {former: latest for *formers, latest in ids.values() for former in formers}


def _stopping_for(record: OwnerRecord, now: int) -> float | None:
    if record.state != STOPPING or not record.stopping_since:
        return None
    return max(0, now - record.stopping_since) / 1000


def _long_runs(
    inspector: Inspector, owners: Iterable[OwnerRecord], now: int
) -> dict[str, list[dict[str, Any]]]:
    """Return the jobs of each owner that have run for ``LONG_RUN_S``, as far as its record names
    their starts. Only private lists of owners that have such jobs are read."""
    found: dict[str, list[dict[str, Any]]] = {}
    started_by_owner = dict[str, dict[int, int]]()
    for record in owners:
        found[record.owner] = []
        long = {n: at for n, at in record.started_jobs if is_long(run_seconds(at, now))}
        if long:
            started_by_owner[record.owner] = long
    places = [JobPlace(RESERVED, owner) for owner in started_by_owner]
    for batch in inspector.in_flight_jobs.jobs(places, LONG_RUNS_BATCH):
        for place, payload, claim, runs in batch:
            at = started_by_owner[place.owner].get(claim_number(claim))
            if at is None or not runs:
                continue
            envelope, name = parse(payload), digest(payload)
            found[place.owner].append(
                {
                    "task": envelope.task,
                    "id": envelope.task_id or name,
                    "digest": name,
                    "started": utc(at),
                    "seconds": run_seconds(at, now),
                }
            )
    return found


def run_seconds(started: int, now: int) -> int:
    """Return for how long (s) a job has run; ``now`` is the server's clock (ms)."""
    return max(0, now // 1000 - started)


def is_long(seconds: int) -> bool:
    """Return whether a run of that length is reported as long-running."""
    return seconds >= LONG_RUN_S


def _longest_run(record: OwnerRecord, now: int) -> float | None:
    starts = [at for _, at in record.started_jobs]
    return max(0.0, now / 1000 - min(starts)) if starts else None


def running_of(row: Mapping[str, Any]) -> str:
    """Return the number of a worker's running jobs and of its pool's slots, as far as its record
    has these; ``full`` if it can start no further job."""
    slots = row["slots"]
    if not slots:
        return str(row["running"])
    return f"{row['running']} of {slots}" + (", full" if is_full(row) else "")


def running_text(row: Mapping[str, Any]) -> str:
    """Return the same for a sentence: ``1 of 1 slots running (full)``."""
    if not row["slots"]:
        return f"{row['running']} running"
    return f"{row['running']} of {row['slots']} slots running" + " (full)" * is_full(row)


def is_full(row: Mapping[str, Any]) -> bool:
    """Return whether each slot of a worker's pool runs a job, and the worker would start others."""
    return row["state"] == "running" and 0 < row["slots"] <= row["running"]


def by_need(owners: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return owners with their state in a word or two, and its severity, the worst first."""
    rows = []
    for owner in owners:
        word, mood = owner["state"], {SILENT: "warning"}.get(owner["state"], "ok")
        if owner["verdict"] == "dead":
            word, mood = f"dead, {HUNG}" if word == HUNG else "dead", "critical"
        rows.append({**owner, "word": word, "mood": mood})
    return sorted(rows, key=lambda row: (SEVERITIES.index(row["mood"]), row["node"], row["owner"]))


def state_of(record: OwnerRecord, age: float) -> str:
    """Return the state of a living owner whose last heartbeat is ``age`` s old. An owner that
    missed two is stale: the state in its record may have changed."""
    return SILENT if age >= MISSED_HEARTBEATS * record.heartbeat_interval else record.state


def queue_rows(
    inspector: Inspector,
    owners_lists: Iterable[str],
    consumers: Mapping[str, Counter[str]],
    now: int,
) -> list[dict[str, Any]]:
    """Return a row for each queue list at the time ``now`` (server ms): the lists of the app,
    ``owners_lists``, and lists that no owner may serve any more and that have jobs."""
    pauses = inspector.paused.all()
    named = {*inspector.lists, *owners_lists}
    lists = {*named, *lists_with_jobs(inspector), *pauses}
    served = {*inspector.registry.served()}
    # Queues whose last worker left within a week: they are shown while they have jobs.
    left = served - lists
    lists |= left
    parts = sorted((*inspector.database.list_names.split(name), name) for name in lists)
    names = [name for *_, name in parts]
    ages, rows = inspector.queues.oldest(names), []
    parked = inspector.parked.sizes(names)
    due = inspector.parked.next_due([name for name in names if parked[name]])
    for (queue, step, name), (length, probation) in zip(
        parts, inspector.queues.lengths(names), strict=True
    ):
        states = consumers.get(name, Counter())
        row = {
            "queue": queue,
            "priority": step,
            "list": name,
            # False: neither a setting nor a worker names it, now or within a week.
            "known": name in named or name in served,
            "length": length,
            # Suspects that wait for a solo run are not in the queue.
            "probation": probation,
            # Nor are scheduled jobs.
            "parked": parked[name],
            "next_due": utc(due[name] / 1000) if name in due else None,
            # Seconds since the next scheduled job was due: no process has moved it to its queue.
            "overdue": max(0.0, (now - due[name]) / 1000) if name in due else 0.0,
            "oldest": ages.get(name),
            "consumers": states["running"],
            "paused": _pause_row(pauses[queue], now) if queue in pauses else None,
            # Owners that have the list and start no job: state -> how many.
            "not_consuming": {
                state: count for state, count in states.items() if state != "running"
            },
        }
        if isinstance(length, ResponseError):  # the key is no list
            row.update(length=None, error=str(length))
        if name not in left or row["length"] != 0 or probation or parked[name]:
            rows.append(row)
    return rows


def lists_with_jobs(inspector: Inspector) -> set[str]:
    """Return the queue lists that have jobs, also those that no worker has, as far as a pass, a
    park or a probation has noted them."""
    found = inspector.queues.noted(), inspector.suspects.lists(), inspector.parked.lists()
    return {*chain.from_iterable(found)}


def queue_lists_of(inspector: Inspector, owners: Iterable[str]) -> set[str]:
    """Return the queue lists of the app and of some owners, those with jobs, and those whose last
    worker left within a week."""
    records = inspector.registry.records(owners).values()
    lists = {name for record in records for name in record.lists}
    return {*inspector.lists, *lists, *lists_with_jobs(inspector), *inspector.registry.served()}


def _stock_consumers(inspector: Inspector, rows: Iterable[Mapping[str, Any]]) -> int:
    """Return the number of stock consumers' connections; 0 if no queue asks for it."""
    is_asked = any(row["length"] and not row["known"] for row in rows)
    return len(inspector.unacked.consumers() or ()) if is_asked else 0


def _pause_row(pause: Pause, now: int) -> dict[str, Any]:
    """Return since when a queue is paused, for how long (s), and by whom; None: unknown."""
    at = pause.at or None
    return {
        "at": utc(at / 1000) if at else None,
        "age": max(0, now - at) / 1000 if at else None,
        "by": pause.by or None,
    }


def by_queue(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each queue, from the ``rows`` of its lists: first those whose key is no
    list or that no worker serves, then the paused ones, then the fullest."""
    queues: dict[str, dict[str, Any]] = {}
    for row in rows:
        fresh: dict[str, Any] = {"waiting": 0, "probation": 0, "parked": 0, "next_due": None}
        fresh |= {"overdue": 0.0, "oldest": None, "consumers": 0, "not_consuming": {}}
        fresh |= {"paused": None, "error": None, "known": False, "stalled": None}
        queue = queues.setdefault(row["queue"], {"queue": row["queue"], **fresh})
        queue["known"] = queue["known"] or row["known"]
        queue["waiting"] += row["length"] or 0
        queue["probation"] += row["probation"]
        queue["parked"] += row["parked"]
        queue["overdue"] = max(queue["overdue"], row["overdue"])
        dues = filter(None, (queue["next_due"], row["next_due"]))
        queue["next_due"] = min(dues, default=None)  # ISO 8601 of one zone has their order
        if row["length"]:
            # Of one of its lists a job was claimed lately: then the queue moves. Unknown counts as
            # now: a job that no pass has seen came lately.
            age = row["oldest"] or 0.0
            queue["stalled"] = age if queue["stalled"] is None else min(age, queue["stalled"])
        if row["oldest"] is not None:
            queue["oldest"] = max(queue["oldest"] or 0.0, row["oldest"])
        queue["consumers"] = max(queue["consumers"], row["consumers"])
        for state, count in row["not_consuming"].items():
            queue["not_consuming"][state] = max(count, queue["not_consuming"].get(state, 0))
        queue["paused"] = queue["paused"] or row["paused"]
        queue["error"] = queue["error"] or row.get("error")
    for queue in queues.values():
        # A pass stores since when a job is the oldest. Before that its age is unknown, not 0.
        if queue["oldest"] is None and not queue["waiting"]:
            queue["oldest"] = 0.0
        wanted = queue["error"] or queue["waiting"] or queue["probation"]
        wanted = wanted or queue["overdue"] > OVERDUE_S
        queue["unserved"] = bool(wanted and not queue["consumers"])
    return sorted(
        queues.values(),
        key=lambda q: (
            not q["error"],
            not q["unserved"],
            not q["paused"],
            -q["waiting"],
            q["queue"],
        ),
    )


def _last_pass(inspector: Inspector, now: int) -> dict[str, Any] | None:
    """Return the last pass; None if there was none."""
    row = inspector.stats.last_pass()
    if not row:
        return None
    at = whole(row.get("at"), now)
    return {
        "at": utc(at / 1000),
        "age": max(0, now - at) / 1000,
        "by": row.get("by", ""),
        "seconds": real(row.get("seconds")),
        "interval": max(0.0, real(row.get("interval"))),
        **{name: whole(row.get(name)) for name in ("owners", "recovered", "killed", "errors")},
    }
