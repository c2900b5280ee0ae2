"""The document of ``status --json``: an overview, bounded where the number of queues is not.

Of 2,000 queues and 200 workers the whole one has 1.1 MB, and twice that if no worker runs. Programs
that need all of it ask with ``--wide``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from .finding import Finding

QUEUES_MOST = 200  # queues that have rows
OWNER_LISTS_MOST = 10  # queue lists that the row of an owner names
FINDINGS_MOST = 100


def shortened(
    findings: Collection[Finding],
    overview: Mapping[str, Any],
    queues: Iterable[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the document with bounded lists, and the numbers of the entries that are left out.

    Arguments:
        queues: a row for each queue, in the order in which they are kept (``by_queue``).
    """
    empty = {row["list"] for row in overview["queues"] if _is_empty(row)}
    kept_queues = {row["queue"] for row, _ in zip(queues, range(QUEUES_MOST), strict=False)}
    rows = [row for row in overview["queues"] if row["list"] not in empty]
    shown = [row for row in rows if row["queue"] in kept_queues]
    return {
        **overview,
        "findings": [finding.as_dict() for finding in [*findings][:FINDINGS_MOST]],
        "findings_left_out": max(0, len(findings) - FINDINGS_MOST),
        "owners": [_shortened_owner(row, empty) for row in overview["owners"]],
        "queues": shown,
        "queues_left_out": len({row["queue"] for row in rows} - kept_queues),
        "empty_lists_left_out": len(empty),
    }


def whole(findings: Iterable[Finding], overview: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with all entries."""
    return {**overview, "findings": [finding.as_dict() for finding in findings]}


def _is_empty(row: Mapping[str, Any]) -> bool:
    """Return whether a list is of another priority than the first one, and holds nothing: of five
    rows of an idle queue four say no more than the first one."""
    holds = row["length"] or row["probation"] or row["parked"] or row.get("error")
    return row["list"] != row["queue"] and not holds


def _shortened_owner(row: Mapping[str, Any], empty: Collection[str]) -> dict[str, Any]:
    names = [name for name in row["queues"] if name not in empty]
    left_out = max(0, len(names) - OWNER_LISTS_MOST)
    return {**row, "queues": names[:OWNER_LISTS_MOST], "queues_left_out": left_out}
