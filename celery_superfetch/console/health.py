"""The findings of an overview, the worst first, and the verdict in one line.

``status``, ``check``, ``doctor``, the metrics and the page all call this module, so that they
agree. It only reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..inspector import Inspector
from ..model.humanize import number
from .finding import Finding, sorted_by_level
from .findings_of_jobs import (
    of_charts,
    of_dead_set,
    of_long_runs,
    of_lost_jobs,
    of_pauses,
    of_queues,
    of_stopped,
    of_wrong_keys,
)
from .findings_of_server import of_data_loss, of_restarts, of_server
from .findings_of_workers import of_beats, of_deaths, of_owners, of_passes
from .overview import by_need, by_queue, overview_of


class Judged(NamedTuple):
    """An overview with its findings, as `status` and the page show it."""

    verdict: str
    worst: Finding | None  # the finding in the verdict
    findings: list[Finding]  # all others
    overview: Mapping[str, Any]
    owners: list[dict[str, Any]]
    queues: list[dict[str, Any]]

    def document(self, wide: bool) -> dict[str, Any]:
        """Return all as data; without ``wide`` bounded, with the numbers of entries left out."""
        from .document import shortened, whole  # a probe does not load it

        all_findings = [*filter(None, [self.worst]), *self.findings]
        if wide:
            return whole(all_findings, self.overview)
        return shortened(all_findings, self.overview, self.queues)

    def print(self, tables: Any, wide: bool) -> None:
        from .status import print_status

        print_status(tables, self, wide)

    def queue_view(self, inspector: Inspector, queue: str) -> dict[str, Any] | None:
        """Return one queue as data (``queue_view.view_of``); None if there is none of that name."""
        from .queue_view import view_of

        return view_of(inspector, self.overview, queue)

    def print_queue(self, tables: Any, view: Mapping[str, Any]) -> None:
        from .queue_text import print_queue

        print_queue(tables, view)

    def print_verdict(self, tables: Any) -> None:
        from .status import print_verdict

        print_verdict(tables, self)


def judge(inspector: Inspector) -> Judged:
    """Read a database and return its overview with findings, for the core's `status`."""
    return judged(overview_of(inspector))


def judged(overview: Mapping[str, Any]) -> Judged:
    all_findings = findings(overview)
    line = verdict(all_findings, overview)
    # A note about a recent event may come before a warning about a setting.
    worst = all_findings.pop(0) if any(f.level != "note" for f in all_findings) else None
    rows = by_need(overview["owners"]), by_queue(overview["queues"])
    return Judged(line, worst, all_findings, overview, *rows)


def findings(overview: Mapping[str, Any]) -> list[Finding]:
    """Return the findings of an overview, the most urgent first."""
    all_findings = [
        *of_queues(overview),
        *of_pauses(overview),
        *of_owners(overview),
        *of_long_runs(overview),
        *of_stopped(overview),
        *of_passes(overview),
        *of_beats(overview),
        *of_deaths(overview),
        *of_restarts(overview),
        *of_data_loss(overview),
        *of_lost_jobs(overview),
        *of_server(overview["server"]),
        *of_dead_set(overview),
        *of_charts(overview),
        *of_wrong_keys(overview),
    ]
    if not any(owner["verdict"] == "alive" for owner in overview["owners"]):
        text = "no live worker is registered"
        all_findings.insert(0, Finding("critical", "no-worker", text, "start a worker"))
    if jobs := overview["unacked"]:
        text = (
            f"{number(jobs, 'job')} unacked by stock workers, which still run them or were killed"
        )
        fix = f"when no stock worker runs any more, run `{overview['command']} migrate`"
        all_findings.append(Finding("warning", "unacked", text, fix))
    return sorted_by_level(all_findings, overview["accepted_findings"])


def verdict(all_findings: Sequence[Finding], overview: Mapping[str, Any]) -> str:
    """Return one line: the most urgent finding with its fix, or that all is well."""
    bad = [finding for finding in all_findings if finding.level != "note"]
    if bad:
        first, *_ = all_findings
        others = len(bad) - (first in bad)
        suffix = f" ({others} more below)" if others else ""
        return f"{first.level.capitalize()}: {first}{suffix}"
    return f"All is well: {', '.join(summary(overview))}."


def summary(overview: Mapping[str, Any]) -> list[str]:
    """Return the numbers of workers and of jobs in flight, waiting and dead, in words."""
    in_flight = sum(owner["in_flight"] for owner in overview["owners"])
    waiting = sum((row["length"] or 0) + row["probation"] for row in overview["queues"])
    alive = sum(owner["verdict"] == "alive" for owner in overview["owners"])
    dead, killed = overview["dead_set"]["size"], overview["dead_set"]["killed_lately"]
    return [
        number(alive, "worker"),
        f"{number(in_flight, 'job')} in flight",
        f"{waiting} waiting",
        f"{dead} in the dead set" + (f" ({killed} within the hour)" if killed else ""),
    ]
