"""Whether all is well, for probes: it loads no Celery."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..inspector import Inspector
from ..model.process import ProcessImage
from ..model.verdict import Reason
from ..model.words import span
from .health import Finding, findings, told
from .overview import overview_of, state_of


class Answer(NamedTuple):
    """What was found, and in a few words what was looked at."""

    findings: list[Finding]
    told: list[str]


def check(inspector: Inspector, this_host: bool, node: str) -> Answer:
    """Whether a worker of this host, or the one of this name, is well; with neither, whether all
    is: as `status` has it."""
    if not (this_host or node):
        overview = overview_of(inspector)
        return Answer(findings(overview), told(overview))
    said: list[str] = []
    return Answer([*_one_is_heard(inspector, this_host, node, said)], said)


def _one_is_heard(
    inspector: Inspector, this_host: bool, node: str, said: list[str]
) -> Iterator[Finding]:
    """Nothing if one of those who are meant is well; a probe's pod has one, or is just replaced."""
    host = ProcessImage.current().host if this_host else ""
    troubles = []
    for facts, age, verdict in inspector.near(host):
        if node not in ("", facts.node):
            continue
        limit, name = facts.owner_ttl, facts.node or facts.owner
        if not verdict.dead and age <= limit:
            said.append(
                f"worker {name} was heard {span(age)} ago, its state is {state_of(facts, age)}"
            )
            return
        why = [f"more than {span(limit)}"] if age > limit else []
        why += [verdict.value] if verdict.dead or verdict is Reason.RUNNING_SILENT else []
        troubles.append(f"worker {name} was not heard for {span(age)} ({'; '.join(why)})")
    whom = " ".join(filter(None, (node, host and f"of host {host}")))
    text = "; ".join(troubles) or f"no worker {whom} is registered"
    yield Finding("critical", "not-heard", text, "see what its main thread does, or restart it")
