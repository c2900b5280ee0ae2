"""Print each point of a history that has trouble, and a table of all points.

`evidence/crash_points/__init__.py` calls it after a run, and for `--judge`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from .shapes import SHAPES
from .verdict import by_point, trouble


def summary(lines: list[dict[str, Any]], say: Callable[[str], None]) -> int:
    """Print troubles and table. Return the exit code: 1 if the package has trouble, or no point
    ran.

    Arguments:
        lines: the history.
        say: prints a line of text.
    """
    rows: dict[tuple[str, str, str], Counter[str]] = {}
    bad = 0
    for point, events in by_point(lines).items():
        send = events[0]
        row = rows.setdefault((send["side"], send["pool"], send["shape"]), Counter())
        harm = next((line for line in events if line["event"] == "harm"), None)
        row["points"] += harm is not None
        found = trouble(events)
        row["bad"] += bool(found)
        row.update({one.partition(":")[0] for one in found})
        if found:
            command = harm["command"] if harm else "no harm"
            say(f"{point} [{command}]: {'; '.join(found)}")
            bad += send["side"] == "ours"
    say("")
    say("| side | pool | shape | points | with trouble | which |")
    say("| --- | --- | --- | --- | --- | --- |")
    order = list(SHAPES)
    for side, pool, shape in sorted(rows, key=lambda row: (*row[:2], order.index(row[2]))):
        row = rows[side, pool, shape]
        kinds = ", ".join(f"{kind} {row[kind]}" for kind in sorted(row) if kind not in COUNTS)
        say(f"| {side} | {pool} | {shape} | {row['points']} | {row['bad']} | {kinds or '-'} |")
    for side in sorted({side for side, _, _ in rows}):
        own = [row for (one, _, _), row in rows.items() if one == side]
        points, troubled = sum(row["points"] for row in own), sum(row["bad"] for row in own)
        say(f"{side}: {points} points, {troubled} with trouble")
    return 1 if bad or not rows else 0


#: Keys of a row of the table that are no kinds of trouble.
COUNTS = ("points", "bad")
