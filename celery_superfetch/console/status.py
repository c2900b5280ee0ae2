"""The text of ``celery superfetch status``: verdict, findings, workers, queues, deaths, server.

``health.Judged`` calls it, for ``cli/status.py``. It only prints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..cli.tables import GREEN, RED, STYLES, YELLOW, Tables
from ..model.humanize import ago, ahead, number, span
from ..model.verdict import Reason
from .finding import Finding
from .overview import running_of

#: Rows of a table, and findings, on a terminal: more push the verdict off the screen.
TABLE_ROWS_MAX = 20

OWNER_TITLES = ("Worker", "Worker id", "State", "Heartbeat", "Running", "Reserved", "App", "Reason")
QUEUE_TITLES = ("Queue", "Waiting", "Probation", "Scheduled", "Next due", "Oldest", "Consumers")
DEATH_TITLES = ("Died", "Worker", "Worker id", "Recovered", "Dead set", "Reason")

Rows = Sequence[Mapping[str, Any]]


def print_status(tables: Tables, judged: Any, wide: bool) -> None:
    """Print what was ``judged``, the verdict first; with ``wide`` also the ids of workers and all
    that does not fit."""
    if wide:
        tables.widen()
    others, overview = judged.findings, judged.overview
    print_verdict(tables, judged)
    if judged.worst:
        print_links(tables, judged.worst)
    for finding in others if tables.wide else others[:TABLE_ROWS_MAX]:
        tables.line(f"{finding.level.capitalize()}: {finding}", STYLES[finding.level])
        print_links(tables, finding)
    if len(others) > TABLE_ROWS_MAX and not tables.wide:
        tables.line(f"and {len(others) - TABLE_ROWS_MAX} more: --wide shows all")
    tables.line()
    _owners(tables, judged.owners, overview["tombstones"], wide)
    tables.line()
    _queues(tables, overview["queues"], judged.queues, wide, overview["server_time"])
    if overview["deaths"]:
        tables.line()
        tables.line("Last deaths of workers:")
        now = overview["server_time"]
        rows = (_death(row, now) for row in overview["deaths"])
        tables.table([title for title in DEATH_TITLES if wide or title != "Worker id"], rows)
    tables.line()
    for line in _facts(overview):
        tables.line(line)


def print_links(tables: Tables, finding: Finding) -> None:
    """Print the command that shows the cause of a finding, and the address of its section of the
    runbook: on a line of its own, unbroken, so that a terminal makes a link of it."""
    if finding.command and f"{finding.command}`" not in finding.fix:
        tables.line(f"  See `{finding.command}`")
    tables.say(f"  {finding.runbook}")


def print_verdict(tables: Tables, judged: Any) -> None:
    tables.line(judged.verdict, STYLES[judged.worst.level] if judged.worst else GREEN)


def _owners(tables: Tables, owners: Rows, reaped: Mapping[str, int], wide: bool) -> None:
    rows = [_owner(row) for row in owners]
    idle = {"Worker id"} if not wide else set()
    idle |= set() if any(row["reason"] for row in rows) else {"Reason"}
    titles = [title for title in OWNER_TITLES if title not in idle]
    tables.table(titles, rows, [] if wide else ["App", "Reason"], TABLE_ROWS_MAX)
    if not owners:
        tables.line("No worker is registered: no worker of an app with install() is running.")
    if tombs := reaped["owners"]:
        workers, jobs_left = number(tombs, "worker"), reaped["in_flight"]
        tables.line(
            f"Declared dead lately: {workers}. Jobs left to the next reap pass: {jobs_left}."
        )


def _owner(row: Mapping[str, Any]) -> dict[str, object]:
    long = len(row["long_runs"])
    usual = row["reason"] in (Reason.HEARD.value, Reason.RUNNING.value)
    return {
        **row,
        "worker": row["node"] or row["owner"],
        "worker_id": row["owner"],
        "state": (row["word"], STYLES[row["mood"]]),
        "heartbeat": f"{span(row['heartbeat_age'])} ago",
        "running": (f"{running_of(row)}, {long} long", YELLOW) if long else running_of(row),
        # The reason of an unusual verdict.
        "reason": "" if usual else row["reason"],
    }


def _death(row: Mapping[str, Any], now: str) -> dict[str, object]:
    return {
        **row,
        "died": ago(row["at"], now),
        "worker": row["node"] or row["owner"],
        "worker_id": row["owner"],
        "dead_set": row["killed"],
    }


def _queues(tables: Tables, lists: Rows, queues: Rows, wide: bool, now: str) -> None:
    """Print a row for each queue, with all its priorities; with ``wide`` a column for each."""
    lengths = {(row["queue"], row["priority"]): row["length"] for row in lists}
    steps = sorted({step for _, step in lengths}) if wide else []
    rows = [
        {
            **row,
            **{f"priority_{step}": lengths.get((row["queue"], step)) for step in steps},
            "waiting": (row["error"], RED) if row["error"] else row["waiting"],
            "probation": (row["probation"], YELLOW) if row["probation"] else 0,
            "scheduled": row["parked"],
            "next_due": row["next_due"] and ahead(row["next_due"], now),
            "oldest": span(row["oldest"]) if row["oldest"] else None,
            "consumers": (0, RED) if row["unserved"] else row["consumers"],
            "paused": row["paused"] and (_paused(row["paused"]), YELLOW),
        }
        for row in queues
    ]
    titles = [*QUEUE_TITLES, *(f"Priority {step}" for step in steps)]
    if any(row["paused"] for row in queues):
        titles.append("Paused")
    tables.table(titles, rows, most=TABLE_ROWS_MAX)


def _paused(pause: Mapping[str, Any]) -> str:
    return "yes" if pause["age"] is None else f"for {span(pause['age'])}"


def _facts(overview: dict[str, Any]) -> Iterator[str]:
    """Yield the lines on the last pass, beats, the dead set, the server and the counters."""
    last, dead, now = overview["last_pass"], overview["dead_set"], overview["server_time"]
    if last is None:
        yield "Last reap pass: none is recorded"
    else:
        yield (
            f"Last reap pass: {span(last['age'])} ago by {last['by']}, "
            f"{number(last['owners'], 'worker')}, {number(last['recovered'], 'job')} recovered, "
            f"{last['killed']} moved to the dead set, {number(last['errors'], 'error')}, "
            f"{last['seconds']:g} s"
        )
    for row in overview["beats"]:
        yield f"Beat: {row['host']} pid {row['pid']}, last tick {ago(row['at'], now)}"
    if overview["unacked"]:
        yield f"Unacked by stock workers: {number(overview['unacked'], 'job')}"
    whose = "" if dead["size"] == dead["of_app"] else f"; of this app {dead['of_app']}"
    if never_ran := sum(dead["caps"][kind]["jobs"] for kind in ("never_ran", "junk")):
        whose += f", and {number(never_ran, 'message')} that never ran"
    pending = dead["unannounced"]
    notified = f", {number(pending, 'failure notification')} pending" if pending else ""
    yield f"Dead set: {number(dead['size'], 'job')}{whose} of at most {dead['limit']}{notified}"
    yield f"Server: {_server(overview['server'])}"
    if overview["counters"]:
        counted = ", ".join(f"{name} {count}" for name, count in overview["counters"].items())
        yield f"Counters: {counted}"


def _server(server: dict[str, Any]) -> str:
    if server["version"] is None:
        return "unknown, since the ACL forbids INFO"
    memory = f"{(server['used_memory'] or 0) / 1024**2:.0f} MiB"
    if server["maxmemory"]:
        memory += f" of {server['maxmemory'] / 1024**2:.0f} MiB"
    saves = {None: "", "": ", no RDB saves"}.get(server["saves"], f", RDB saves {server['saves']}")
    up = f"up {span(server['uptime_s'])}, " if server["uptime_s"] is not None else ""
    return (
        f"{server['version']}, {server['role']}, {up}{memory}, {server['eviction_policy']}, "
        f"AOF {'on' if server['append_only'] else 'off'}{saves}, "
        f"{number(server['replicas'] or 0, 'replica')}"
    )
