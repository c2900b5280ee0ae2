"""Findings by the overview alone, the worst first, and the verdict in one line. ``status``,
``check``, ``doctor``, the metrics and the page all ask this module, so that they agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..inspector import Inspector
from ..model.words import number
from .finding import Finding, sorted_by_level
from .findings_of_jobs import of_dead_set, of_long_runs, of_lost_jobs, of_queues, of_stopped
from .findings_of_server import of_data_loss, of_restarts, of_server
from .findings_of_workers import of_beats, of_deaths, of_owners, of_passes
from .overview import by_need, by_queue, overview_of


class Judged(NamedTuple):
    """What `status` and the page show."""

    verdict: str
    worst: Finding | None  # what the verdict tells of
    findings: list[Finding]  # and all others
    overview: Mapping[str, Any]
    owners: list[dict[str, Any]]
    queues: list[dict[str, Any]]

    def document(self, wide: bool) -> dict[str, Any]:
        """Return all as data; without ``wide`` bounded, with how many are left out of what."""
        from .document import shortened, whole  # a probe goes without

        all_findings = [*filter(None, [self.worst]), *self.findings]
        if wide:
            return whole(all_findings, self.overview)
        return shortened(all_findings, self.overview, self.queues)

    def print(self, tables: Any, wide: bool) -> None:
        from .status import print_status

        print_status(tables, self, wide)

    def print_verdict(self, tables: Any) -> None:
        from .status import print_verdict

        print_verdict(tables, self)


def judge(inspector: Inspector) -> Judged:
    """All there is to see, and how it is, for the core's `status`."""
    return judged(overview_of(inspector))


def judged(overview: Mapping[str, Any]) -> Judged:
    all_findings = findings(overview)
    line = verdict(all_findings, overview)
    worst = all_findings.pop(0) if all_findings and all_findings[0].level != "note" else None
    rows = by_need(overview["owners"]), by_queue(overview["queues"])
    return Judged(line, worst, all_findings, overview, *rows)


def findings(overview: Mapping[str, Any]) -> list[Finding]:
    """All that is to be known of what an inspector saw, worst first."""
    all_findings = [
        *of_queues(overview),
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
    ]
    if not any(owner["verdict"] == "alive" for owner in overview["owners"]):
        text = "no live worker is registered"
        all_findings.insert(0, Finding("critical", "no-worker", text, "start a worker"))
    if jobs := overview["unacked"]:
        text = f"{number(jobs, 'job')} unacked by stock workers, which work on them or were killed"
        fix = f"when no stock worker runs any more, `{overview['command']} migrate`"
        all_findings.append(Finding("warning", "unacked", text, fix))
    return sorted_by_level(all_findings, overview["accepted_findings"])


def verdict(all_findings: Sequence[Finding], overview: Mapping[str, Any]) -> str:
    """One line: that all is well, or what is worst and what to do about it."""
    bad = [finding for finding in all_findings if finding.level != "note"]
    if bad:
        suffix = f" ({len(bad) - 1} more below)" if len(bad) > 1 else ""
        return f"{bad[0].level.capitalize()}: {bad[0]}{suffix}"
    return f"All is well: {', '.join(summary(overview))}."


def summary(overview: Mapping[str, Any]) -> list[str]:
    """How many workers there are, how many jobs are in flight, wait and are dead, in words."""
    in_flight = sum(owner["in_flight"] for owner in overview["owners"])
    waiting = sum((row["length"] or 0) + row["probation"] for row in overview["queues"])
    alive = sum(owner["verdict"] == "alive" for owner in overview["owners"])
    dead, killed = overview["dead_set"]["size"], overview["dead_set"]["killed_lately"]
    return [
        number(alive, "worker"),
        f"{number(in_flight, 'job')} in flight",
        f"{waiting} waiting",
        f"{dead} in the dead set" + (f" ({killed} killed within the hour)" if killed else ""),
    ]
