"""What there is to see of an app's database, as one plain document; it changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from redis.exceptions import ResponseError

from ..inspector import RESERVED, STATES, Holding, Inspector, Place
from ..model.dead_job import DeadJob, utc
from ..model.facts import HUNG, SILENT, STOPPING, Facts
from ..model.job import claim_number, digest, parse
from ..model.records import real, whole
from ..model.verdict import MISSED_HEARTBEATS, Reason
from ..model.words import command
from .finding import accepted

#: What an owner's row has as it was registered.
FACTS = ("owner", "node", "app", "version", "state", "heartbeat_interval", "owner_ttl")

CANCELLED = "cancelled"  # what an owner is to a queue whose consumer it cancelled

MOODS = ("critical", "warning", "ok")  # of an owner, the worst first

NEAR = 0.8  # share of a cap of the dead set from which on it is nearly full

#: The latest deaths that are told of.
DEATHS = 10

#: Seconds of a run from which on its job is reported as long-running: the time limit that the guide
#: for long jobs proposes. Celery reports no such runs, and ends none without a time limit.
LONG_RUN_S = 4 * 3600

#: Jobs that one round trip reads to name those that are long-running.
LONG_RUNS_BATCH = 1000

#: Seconds for which it is told that a worker died and has not come back, or that a job was killed.
LATELY = 3600

#: Seconds after which a scheduled job that is due counts as left behind. Workers move due jobs once
#: a second, and within six seconds those that a worker parked which has died.
OVERDUE_S = 10


def overview_of(inspector: Inspector) -> dict[str, Any]:
    """All there is to see, as one document; it changes nothing."""
    now = inspector.database.server_time()
    judged = inspector.judged()
    owners = [row for row, _ in owner_rows(inspector, judged, now)]
    long_runs = _long_runs(inspector, [facts for facts, _, _ in judged], now)
    for owner in owners:
        owner["long_runs"] = long_runs[owner["owner"]]
    served = consumers_of(owners)
    tombstones = inspector.registry.facts(inspector.registry.tombstones())
    left = inspector.holdings.of([*tombstones])
    owners_lists = {n for row in owners for n in row["queues"]}
    owners_lists |= {n for facts in tombstones.values() for n in facts.lists}
    deaths, last = inspector.history.deaths(DEATHS), _last_pass(inspector, now)
    counts = inspector.history.counts()
    return {
        "command": command(),
        "accepted_findings": accepted(inspector.database.config.accepted_findings),
        "server": _server(inspector),
        "server_time": utc(now / 1000),
        "owners": owners,
        # Jobs here landed late or could not be moved; the next pass drains them.
        "tombstones": {
            "owners": len(tombstones),
            "in_flight": sum(holding.in_flight for holding in left.values()),
        },
        "queues": queue_rows(inspector, owners_lists, served, now),
        "dead_set": {
            "size": len(inspector.dead_set),
            "of_app": inspector.dead_set.of_app(),
            "limit": inspector.database.config.dead_limit,
            "unannounced": inspector.dead_set.untold(),
            **_killed(inspector, now),
            "kept": _kept(inspector),
        },
        # Jobs whose runs stops of their workers cut short again and again.
        "stopped": [
            {**job, "queue": job["queue_list"].partition(inspector.separator)[0]}
            for job in inspector.strikes.stopped()
        ],
        # Of stock workers: what they work on, and what the killed ones left.
        "unacked": inspector.unacked.size(),
        "beats": inspector.history.beats(),
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
        # When a worker last found that the server no longer knew it.
        "data_lost": _utc_of_ms(counts.data_loss),
        "last_pass": last,
        # An app's own option, or what a probe has to go by.
        "reap_interval": (last and last["interval"]) or inspector.database.config.reap_interval,
    }


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
    """How many jobs were killed lately, and the latest of them."""
    lately = inspector.dead_set.died_since(now - LATELY * 1000)
    newest = None
    for job in inspector.dead_set.page(0, 1) if lately else ():
        if job.died is None:  # its time of death makes no sense
            continue
        newest = {name: getattr(job, name) for name in ("id", "task", "task_id", "reason")}
        newest["at"] = utc(job.died)
    return {"killed_lately": lately, "newest": newest}


def _kept(inspector: Inspector) -> dict[str, dict[str, Any]]:
    """Return what the dead set keeps under each cap: jobs that ran, that never ran, and junk. Where
    little room is left under a cap of the latter two, name what most of its newest are."""
    rows = {}
    for cap, jobs, size in inspector.dead_set.kept():
        row: dict[str, Any] = {"jobs": jobs, "bytes": size}
        row |= {"most_jobs": cap.most_jobs, "most_bytes": cap.most_bytes}
        is_near = jobs >= NEAR * cap.most_jobs or (cap.most_bytes and size >= NEAR * cap.most_bytes)
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


def _server(inspector: Inspector) -> dict[str, Any]:
    """What decides whether jobs survive the server; None where it may not be asked."""
    fields, saves = inspector.server()
    lags = [
        int(fields["master_repl_offset"]) - int(replica["offset"])
        for name, replica in fields.items()
        if name.startswith("slave") and isinstance(replica, dict) and "offset" in replica
    ]
    return {
        "version": fields.get("valkey_version") or fields.get("redis_version"),
        "role": fields.get("role"),
        "eviction_policy": fields.get("maxmemory_policy"),
        # Since it started: how long ago (s), and how many keys it has evicted.
        "uptime_s": fields.get("uptime_in_seconds"),
        "evicted_keys": fields.get("evicted_keys"),
        "used_memory": fields.get("used_memory"),
        "maxmemory": fields.get("maxmemory"),
        "append_only": bool(int(fields["aof_enabled"])) if "aof_enabled" in fields else None,
        # Empty: none is made by itself.
        "saves": saves,
        "last_save": fields.get("rdb_last_save_time"),
        "last_save_ok": fields.get("rdb_last_bgsave_status", "ok") == "ok",
        # Without them the death of a worker on another host shows by its silence alone.
        "tells_connections": "run_id" in fields and inspector.registry.tells_connections(),
        "replicas": fields.get("connected_slaves"),
        "replica_lag_bytes": max(lags, default=0),
    }


def owner_rows(
    inspector: Inspector, judged: Sequence[tuple[Facts, int, Reason]], now: int
) -> list[tuple[dict[str, Any], Holding]]:
    """Owners with their scores and verdicts as rows, each with what it holds."""
    held = inspector.holdings.of([facts.owner for facts, _, _ in judged])
    return [
        (_row(facts, score, now, verdict, held[facts.owner]), held[facts.owner])
        for facts, score, verdict in judged
    ]


def _row(facts: Facts, score: int, now: int, verdict: Reason, holding: Holding) -> dict[str, Any]:
    age, reason = max(0, now - score) / 1000, verdict.value
    # Workers keep their watch to themselves: here the age has to speak for a silent owner.
    if verdict is Reason.HEARD and state_of(facts, age) == SILENT:
        reason = (
            f"no heartbeat for {age:.0f} s; it is declared dead once a reaper has watched that for "
            "as long as its limits say"
        )
    return {
        **{name: getattr(facts, name) for name in FACTS},
        "state": facts.state if verdict.dead else state_of(facts, age),
        **{name: getattr(holding, name) for name in ("in_flight", *STATES[:2])},
        "host": facts.process.host,
        "pid": facts.process.pid,
        "heartbeat_age": age,
        # Since it registered.
        "age": max(0, now - facts.registered_at) / 1000,
        "queues": sorted(facts.lists),
        "unconsumed": sorted(facts.unconsumed),
        # For how long (s) it has been stopping; None: it is not.
        "stopping_for": _stopping_for(facts, now),
        # For how long (s) its oldest run has lasted, by its host's clock; None: less than a
        # heartbeat interval.
        "longest_run": _longest_run(facts, now),
        "verdict": "dead" if verdict.dead else "alive",
        "reason": reason,
    }


def _stopping_for(facts: Facts, now: int) -> float | None:
    if facts.state != STOPPING or not facts.stopping_since:
        return None
    return max(0, now - facts.stopping_since) / 1000


def _long_runs(
    inspector: Inspector, owners: Iterable[Facts], now: int
) -> dict[str, list[dict[str, Any]]]:
    """Return the jobs of each owner that have run for ``LONG_RUN_S``, as far as its record names
    their starts. Only private lists of owners that have such jobs are read."""
    found: dict[str, list[dict[str, Any]]] = {}
    started_by_owner = dict[str, dict[int, int]]()
    for facts in owners:
        found[facts.owner] = []
        long = {n: at for n, at in facts.started_jobs if is_long(run_seconds(at, now))}
        if long:
            started_by_owner[facts.owner] = long
    places = [Place(RESERVED, owner) for owner in started_by_owner]
    for batch in inspector.holdings.jobs(places, LONG_RUNS_BATCH):
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


def _longest_run(facts: Facts, now: int) -> float | None:
    starts = [at for _, at in facts.started_jobs]
    return max(0.0, now / 1000 - min(starts)) if starts else None


def by_need(owners: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Owners, each with how it is in a word or two, and how bad that is: the worst first."""
    rows = []
    for owner in owners:
        word, mood = owner["state"], {SILENT: "warning"}.get(owner["state"], "ok")
        if owner["verdict"] == "dead":
            word, mood = f"dead, {HUNG}" if word == HUNG else "dead", "critical"
        rows.append({**owner, "word": word, "mood": mood})
    return sorted(rows, key=lambda row: (MOODS.index(row["mood"]), row["node"], row["owner"]))


def state_of(facts: Facts, age: float) -> str:
    """The state of a living owner whose last heartbeat is so old: nobody knows what a frozen one
    does, whatever it said before."""
    return SILENT if age >= MISSED_HEARTBEATS * facts.heartbeat_interval else facts.state


def queue_rows(
    inspector: Inspector,
    owners_lists: Iterable[str],
    consumers: Mapping[str, Counter[str]],
    now: int,
) -> list[dict[str, Any]]:
    """Queue lists, with what is in them, at a time (server ms); ``owners_lists`` beside those of
    the app, and those that nobody may serve any more are known by what is in them."""
    seen = inspector.queues.noted(), inspector.suspects.lists(), inspector.parked.lists()
    lists = {*inspector.lists, *owners_lists, *chain.from_iterable(seen)}
    # Queues whose last worker left within a week: they are shown while they have jobs.
    left = {*inspector.registry.served()} - lists
    lists |= left
    parts = sorted((*name.partition(inspector.separator), name) for name in lists)
    names = [name for *_, name in parts]
    ages, rows = inspector.queues.oldest(names), []
    parked = inspector.parked.sizes(names)
    due = inspector.parked.next_due([name for name in names if parked[name]])
    for (queue, _, step, name), (length, probation) in zip(
        parts, inspector.queues.lengths(names), strict=True
    ):
        states = consumers.get(name, Counter())
        row = {
            "queue": queue,
            "priority": int(step) if step.isdecimal() else 0,
            "list": name,
            "length": length,
            # Suspects that wait for their turn to run alone are not in the queue.
            "probation": probation,
            # Nor are those that wait for their time; and when the next of them is due.
            "parked": parked[name],
            "next_due": utc(due[name] / 1000) if name in due else None,
            # Seconds since the next of them was due: no process has moved it to its queue.
            "overdue": max(0.0, (now - due[name]) / 1000) if name in due else 0.0,
            "oldest": ages.get(name),
            "consumers": states["running"],
            # Owners that have the list and start no job: state -> how many.
            "not_consuming": {
                state: count for state, count in states.items() if state != "running"
            },
        }
        if isinstance(length, ResponseError):  # something else lives under the queue's name
            row.update(length=None, error=str(length))
        if name not in left or row["length"] != 0 or probation or parked[name]:
            rows.append(row)
    return rows


def by_queue(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row for each queue, of the ``rows`` of its lists: those first that are no queue or that
    nobody serves, then the fullest."""
    queues: dict[str, dict[str, Any]] = {}
    for row in rows:
        fresh: dict[str, Any] = {"waiting": 0, "probation": 0, "parked": 0, "next_due": None}
        fresh |= {"overdue": 0.0, "oldest": None, "consumers": 0, "not_consuming": {}}
        fresh |= {"error": None}
        queue = queues.setdefault(row["queue"], {"queue": row["queue"], **fresh})
        queue["waiting"] += row["length"] or 0
        queue["probation"] += row["probation"]
        queue["parked"] += row["parked"]
        queue["overdue"] = max(queue["overdue"], row["overdue"])
        dues = filter(None, (queue["next_due"], row["next_due"]))
        queue["next_due"] = min(dues, default=None)  # ISO 8601 of one zone has their order
        if row["oldest"] is not None:
            queue["oldest"] = max(queue["oldest"] or 0.0, row["oldest"])
        queue["consumers"] = max(queue["consumers"], row["consumers"])
        for state, count in row["not_consuming"].items():
            queue["not_consuming"][state] = max(count, queue["not_consuming"].get(state, 0))
        queue["error"] = queue["error"] or row.get("error")
    for queue in queues.values():
        # A pass notes since when a job is the oldest. Where none has, it is unknown, not 0.
        if queue["oldest"] is None and not queue["waiting"]:
            queue["oldest"] = 0.0
        wanted = queue["error"] or queue["waiting"] or queue["probation"]
        wanted = wanted or queue["overdue"] > OVERDUE_S
        queue["unserved"] = bool(wanted and not queue["consumers"])
    each = queues.values()
    return sorted(
        each, key=lambda q: (not q["error"], not q["unserved"], -q["waiting"], q["queue"])
    )


def _last_pass(inspector: Inspector, now: int) -> dict[str, Any] | None:
    """The last pass; None where nobody has made one."""
    row = inspector.history.last_pass()
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
