"""The audit list as a plain document. `superfetch audit` and the page print it; it only reads."""

from __future__ import annotations

from typing import Any

from ..inspector import COMPLETE, UNDER_WAY, AuditEntry, Inspector
from ..model.dead_job import utc

#: Seconds without news of a change after which it counts as unfinished. Changes of many jobs send
#: news after each batch.
NEWS_DUE_S = 60

UNFINISHED = "unfinished"

#: State of a change -> its mood; of any other state "warning".
AUDIT_MOODS = {COMPLETE: "ok", UNDER_WAY: "note"}


def mood_of(state: str) -> str:
    """Return the mood in which the state of a change is shown."""
    return AUDIT_MOODS.get(state, "warning")


def audit_of(inspector: Inspector, first: int, count: int) -> dict[str, Any]:
    """Return some entries of the audit list, the newest first, and how many there are in all."""
    ids = inspector.audit.ids()
    now = inspector.database.server_time()
    entries = [row_of(entry, now) for entry in inspector.audit.newest(first, count)]
    after = first + len(entries)
    return {
        "server_time": utc(now / 1000),
        "size": len(ids),
        "next": after if after < len(ids) and entries else None,
        "entries": entries,
    }


def change_of(inspector: Inspector, id: str) -> dict[str, Any]:
    """Return the entry of one change (None: it is not on the list), whether the ids of its jobs are
    stored, and the server's time."""
    now = inspector.database.server_time()
    return {
        "id": id,
        "entry": inspector.audit.get(id),
        "has_ids": inspector.bulk_ids.has(id),
        "now": now,
        "server_time": utc(now / 1000),
    }


def row_of(entry: AuditEntry, now: int) -> dict[str, Any]:
    """Return an entry as JSON has it. ``now``: the server's time (ms)."""
    is_late = entry.state == UNDER_WAY and now - entry.updated_at > NEWS_DUE_S * 1000
    return {
        "id": entry.id,
        "at": utc(entry.at / 1000) if entry.at else None,
        "by": entry.by,
        "action": entry.action,
        "subject": entry.subject,
        "total": entry.total,
        "done": entry.done,
        "failed": entry.failed,
        "state": UNFINISHED if is_late else entry.state,
        "outcome": entry.outcome,
        "updated": utc(entry.updated_at / 1000) if entry.updated_at else None,
    }


def outcome_of(row: dict[str, Any]) -> str:
    """Return the outcome of a change in words; of one that has not ended, how far it came."""
    if row["outcome"]:
        return str(row["outcome"])
    if row["total"] is None:
        return ""
    failed = f", {row['failed']} failed" if row["failed"] else ""
    return f"{row['done']} of {row['total']} done{failed}"
