"""Whether all is well, for probes: it reads what is asked for and no more, and loads no Celery."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ..inspector import Inspector
from ..model.process import ProcessImage
from ..model.verdict import Reason
from ..model.words import command, number, span
from .health import Finding, findings, told
from .overview import by_queue, overview_of, queue_rows, state_of


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


def check(inspector: Inspector, asked: Conditions) -> Answer:
    """Whether the conditions hold."""
    answer = Answer([], [])
    if asked == Conditions():
        overview = overview_of(inspector)
        return Answer(findings(overview), told(overview))
    if asked.this_host or asked.node:
        answer.findings.extend(_one_is_heard(inspector, asked, answer.told))
    elif asked.max_age is not None:
        answer.findings.extend(_all_are_heard(inspector, asked.max_age, answer.told))
    if asked.queue_age is not None or asked.queue_length is not None:
        registry = inspector.registry
        owners = registry.facts(registry.owners()).values()
        rows = queue_rows(inspector, (name for facts in owners for name in facts.lists), {})
        answer.findings.extend(_long_queues(rows, asked, answer.told))
    if asked.dead_limit is not None:
        size = len(inspector.dead_jobs)
        answer.told.append(f"{size} in the dead set")
        if size > asked.dead_limit:
            text = f"{number(size, 'job')} in the dead set, more than {asked.dead_limit}"
            fix = f"`{command()} dead list`, then `dead retry` or `dead delete`"
            answer.findings.append(Finding("critical", "dead-limit", text, fix))
    return answer


def _one_is_heard(inspector: Inspector, asked: Conditions, told: list[str]) -> Iterator[Finding]:
    """Nothing if one of those who are meant is well; a probe's pod has one, or is just replaced."""
    host = ProcessImage.current().host if asked.this_host else ""
    troubles = []
    for facts, age, verdict in inspector.near(host):
        if asked.node not in ("", facts.node):
            continue
        ttl = facts.owner_ttl
        limit = ttl if asked.max_age is None else min(ttl, asked.max_age)
        name = facts.node or facts.owner
        if not verdict.dead and age <= limit:
            told.append(
                f"worker {name} was heard {span(age)} ago, its state is {state_of(facts, age)}"
            )
            return
        why = [f"more than {span(limit)}"] if age > limit else []
        why += [verdict.value] if verdict.dead or verdict is Reason.RUNNING_SILENT else []
        troubles.append(f"worker {name} was not heard for {span(age)} ({'; '.join(why)})")
    whom = " ".join(filter(None, (asked.node, host and f"of host {host}")))
    text = "; ".join(troubles) or f"no worker {whom} is registered"
    yield Finding("critical", "not-heard", text, "see what its main thread does, or restart it")


def _all_are_heard(inspector: Inspector, limit: float, told: list[str]) -> Iterator[Finding]:
    ages = inspector.ages()
    if not ages:
        yield Finding("critical", "no-worker", "no worker is registered", "start a worker")
        return
    oldest = max(ages, key=lambda owner: ages[owner])
    told.append(f"{number(len(ages), 'worker')}, the oldest heartbeat {span(ages[oldest])} ago")
    if ages[oldest] > limit:
        silent = sum(age > limit for age in ages.values())
        text = f"{number(silent, 'worker')} not heard for more than {span(limit)}: {oldest} for "
        fix = "`superfetch status` says who they are and what they hold"
        yield Finding("critical", "max-age", text + span(ages[oldest]), fix)


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
