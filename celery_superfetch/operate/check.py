"""Whether all is well, for probes: it reads what is asked for and no more, and loads no Celery."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ..model.process import ProcessImage
from ..model.verdict import Reason, judge
from ..reaper.evidence import local_evidence
from ..store.database import Database
from ..store.dead_jobs import DeadJobs
from ..store.registry import Registry
from .health import (
    DEAD_LIST,
    Finding,
    by_queue,
    held,
    of_long_runs,
    of_owners,
    of_passes,
    of_queues,
)
from .overview import look, queue_rows
from .words import number, span


class Conditions(NamedTuple):
    """What has to hold; with none of them, whatever the overview's findings look at."""

    this_host: bool = False
    node: str = ""
    #: Seconds since the last heartbeat.
    max_age: float | None = None
    #: Jobs in the dead set, seconds that a job waits, and jobs of a queue; the most that are well.
    dead_limit: int | None = None
    queue_age: float | None = None
    queue_length: int | None = None


class Answer(NamedTuple):
    """What was found, and in a few words what was looked at."""

    findings: list[Finding]
    told: list[str]


def check(
    database: Database,
    asked: Conditions,
    lists: Iterable[str] = (),
    separator: str = DeadJobs.separator,
) -> Answer:
    """Whether the conditions hold; ``lists`` and ``separator`` are those of ``look``."""
    answer = Answer([], [])
    if asked == Conditions():
        return _everything(look(database, lists, separator))
    if asked.this_host or asked.node:
        answer.findings.extend(_one_is_heard(database, asked, answer.told))
    elif asked.max_age is not None:
        answer.findings.extend(_all_are_heard(database, asked.max_age, answer.told))
    if asked.queue_age is not None or asked.queue_length is not None:
        registry = Registry(database)
        served = registry.facts(registry.owners()).values()
        known = {*lists, *(name for facts in served for name in facts.lists)}
        rows = queue_rows(database, known, separator, {})
        answer.findings.extend(_long_queues(rows, asked, answer.told))
    if asked.dead_limit is not None:
        size = len(DeadJobs(database))
        answer.told.append(f"{size} in the dead set")
        if size > asked.dead_limit:
            text = f"{number(size, 'job')} in the dead set, more than {asked.dead_limit}"
            fix = f"{DEAD_LIST}, then `dead retry` or `dead delete`"
            answer.findings.append(Finding("critical", "dead-limit", text, fix))
    return answer


def _everything(seen: Mapping[str, Any]) -> Answer:
    """The findings that ``status`` begins with; those of its server are not a probe's."""
    found = [one for part in (of_queues, of_owners, of_passes) for one in part(seen)]
    found += of_long_runs(seen["owners"])
    alive = sum(row["verdict"] == "alive" for row in seen["owners"])
    if not alive:
        text, fix = "no live worker is registered", "start a worker"
        found.insert(0, Finding("critical", "no-worker", text, fix))
    dead = f"{seen['dead_set']['size']} in the dead set"
    return Answer(found, [number(alive, "owner"), *held(seen), dead])


def _one_is_heard(database: Database, asked: Conditions, told: list[str]) -> Iterator[Finding]:
    """Nothing if one of those who are meant is well; a probe's pod has one, or is just replaced."""
    registry, here = Registry(database), ProcessImage.current()
    scores, now = registry.owners(), database.server_time()
    names = [o for o in scores if not asked.this_host or o.partition("|")[0] == here.host]
    known = registry.facts(names)
    facts = [one for one in known.values() if asked.node in ("", one.node)]
    troubles = []
    for one in facts:
        age = max(0, now - scores[one.owner]) / 1000
        # A frozen process is there, and its heart is not: silence is what a probe is for.
        verdict = judge(local_evidence(one, here, known.values(), age))
        limit = min(one.owner_ttl, one.owner_ttl if asked.max_age is None else asked.max_age)
        name = one.node or one.owner
        if not verdict.dead and age <= limit:
            told.append(f"worker {name} was heard {span(age)} ago, its state is {one.state}")
            return
        why = [f"more than {span(limit)}"] if age > limit else []
        why += [verdict.value] if verdict.dead or verdict is Reason.RUNNING_SILENT else []
        troubles.append(f"worker {name} was not heard for {span(age)} ({'; '.join(why)})")
    whom = " ".join(filter(None, (asked.node, f"of host {here.host}" if asked.this_host else "")))
    text = "; ".join(troubles) or f"no worker {whom} is registered"
    yield Finding("critical", "not-heard", text, "see what its main thread does, or restart it")


def _all_are_heard(database: Database, limit: float, told: list[str]) -> Iterator[Finding]:
    scores, now = Registry(database).owners(), database.server_time()
    if not scores:
        yield Finding("critical", "no-worker", "no worker is registered", "start a worker")
        return
    oldest, score = min(scores.items(), key=lambda row: row[1])
    age = max(0, now - score) / 1000
    told.append(f"{number(len(scores), 'owner')}, the oldest heartbeat {span(age)} ago")
    if age > limit:
        silent = sum(now - score > limit * 1000 for score in scores.values())
        text = f"{number(silent, 'owner')} not heard for more than {span(limit)}: {oldest} for "
        fix = "`superfetch status` says who they are and what they hold"
        yield Finding("critical", "max-age", text + span(age), fix)


def _long_queues(
    rows: Iterable[dict[str, Any]], asked: Conditions, told: list[str]
) -> Iterator[Finding]:
    queues = by_queue(rows)
    waiting = sum(queue["waiting"] for queue in queues)
    told.append(f"{number(waiting, 'job')} waiting in {number(len(queues), 'queue')}")
    told.append(f"the oldest for {span(max((q['oldest'] for q in queues), default=0))}")
    for queue in queues:
        name, length, age = queue["queue"], queue["waiting"], queue["oldest"]
        fix = f"start more workers with -Q {name}, or see what theirs do"
        if asked.queue_length is not None and length > asked.queue_length:
            text = f"queue {name}: {number(length, 'job')}, more than {asked.queue_length}"
            yield Finding("critical", "queue-length", text, fix)
        if asked.queue_age is not None and age > asked.queue_age:
            text = f"queue {name}: its oldest job waits for {span(age)}"
            yield Finding("critical", "queue-age", text, fix)
