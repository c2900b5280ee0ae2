"""What ``celery superfetch status`` prints: first whether all is well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..cli.tables import GREEN, RED, STYLES, YELLOW, Tables
from ..model.verdict import Reason
from ..model.words import ago, ahead, number, span

MOST = 20  # rows of a table, and findings, on a terminal: more push the verdict off the screen

OWNERS = ("Node", "Owner", "State", "Heard", "Running", "Reserved", "App", "Reason")
QUEUES = ("Queue", "Waiting", "Probation", "Parked", "Next due", "Oldest", "Consumers")
DEATHS = ("Died", "Node", "Owner", "Recovered", "Killed", "Reason")

Rows = Sequence[Mapping[str, Any]]


def print_status(tables: Tables, judged: Any, wide: bool) -> None:
    """Print what was ``judged``, first how it is; ``wide`` for the ids of workers and
    all else that is left out."""
    if wide:
        tables.widen()
    rest, overview = judged.findings, judged.overview
    print_verdict(tables, judged)
    for finding in rest if tables.wide else rest[:MOST]:
        tables.line(f"{finding.level.capitalize()}: {finding}", STYLES[finding.level])
    if len(rest) > MOST and not tables.wide:
        tables.line(f"and {len(rest) - MOST} more: --wide shows all")
    tables.line()
    _owners(tables, judged.owners, overview["tombstones"], wide)
    tables.line()
    _queues(tables, overview["queues"], judged.queues, wide, overview["server_time"])
    if overview["deaths"]:
        tables.line()
        tables.line("Last deaths:")
        now = overview["server_time"]
        rows = ({**row, "died": ago(row["at"], now)} for row in overview["deaths"])
        tables.table([title for title in DEATHS if wide or title != "Owner"], rows)
    tables.line()
    for line in _facts(overview):
        tables.line(line)


def print_verdict(tables: Tables, judged: Any) -> None:
    tables.line(judged.verdict, STYLES[judged.worst.level] if judged.worst else GREEN)


def _owners(tables: Tables, owners: Rows, reaped: Mapping[str, int], wide: bool) -> None:
    rows = [_owner(row) for row in owners]
    idle = {"Owner"} if not wide else set()
    idle |= set() if any(row["reason"] for row in rows) else {"Reason"}
    titles = [title for title in OWNERS if title not in idle]
    tables.table(titles, rows, [] if wide else ["App", "Reason"], MOST)
    if not owners:
        tables.line("No worker is registered: none of an app with install() runs.")
    if tombs := reaped["owners"]:
        jobs, are = number(reaped["in_flight"], "job"), "is" if reaped["in_flight"] == 1 else "are"
        workers = number(tombs, "worker")
        tables.line(f"Reaped lately: {workers}; {jobs} of which {are} left to the next pass.")


def _owner(row: Mapping[str, Any]) -> dict[str, object]:
    long = len(row["long_runs"])
    usual = row["reason"] in (Reason.HEARD.value, Reason.RUNNING.value)
    return {
        **row,
        "node": row["node"] or row["owner"],
        "state": (row["word"], STYLES[row["mood"]]),
        "heard": f"{span(row['heartbeat_age'])} ago",
        "running": (f"{row['running']}, {long} long", YELLOW) if long else row["running"],
        # Why it is taken for what it is; nothing where all is as it should be.
        "reason": "" if usual else row["reason"],
    }


def _queues(tables: Tables, lists: Rows, queues: Rows, wide: bool, now: str) -> None:
    """A row for each queue, with all its priorities; with ``--wide`` a column for each of them."""
    lengths = {(row["queue"], row["priority"]): row["length"] for row in lists}
    steps = sorted({step for _, step in lengths}) if wide else []
    rows = [
        {
            **row,
            **{f"priority_{step}": lengths.get((row["queue"], step)) for step in steps},
            "waiting": (row["error"], RED) if row["error"] else row["waiting"],
            "probation": (row["probation"], YELLOW) if row["probation"] else 0,
            "next_due": row["next_due"] and ahead(row["next_due"], now),
            "oldest": span(row["oldest"]) if row["oldest"] else None,
            "consumers": (0, RED) if row["unserved"] else row["consumers"],
        }
        for row in queues
    ]
    tables.table((*QUEUES, *(f"Priority {step}" for step in steps)), rows, most=MOST)


def _facts(overview: dict[str, Any]) -> Iterator[str]:
    """What is one of a kind, each in a line."""
    last, dead, now = overview["last_pass"], overview["dead_set"], overview["server_time"]
    if last is None:
        yield "Last pass: none is known of"
    else:
        yield (
            f"Last pass: {span(last['age'])} ago by {last['by']}, "
            f"{number(last['owners'], 'worker')}, {number(last['recovered'], 'job')} recovered, "
            f"{last['killed']} killed, {number(last['errors'], 'error')}, {last['seconds']:g} s"
        )
    for row in overview["beats"]:
        yield f"Beat: {row['host']} pid {row['pid']}, last tick {ago(row['at'], now)}"
    if overview["unacked"]:
        yield f"Unacked by stock workers: {number(overview['unacked'], 'job')}"
    whose = "" if dead["size"] == dead["of_app"] else f"; of this app {dead['of_app']}"
    if never_ran := sum(dead["kept"][kind]["jobs"] for kind in ("never_ran", "junk")):
        whose += f" ({number(never_ran, 'message')} apart that never ran)"
    yield (
        f"Dead set: {number(dead['size'], 'job')}{whose} of at most {dead['limit']}, "
        f"{dead['unannounced']} unannounced"
    )
    yield f"Server: {_server(overview['server'])}"
    if overview["counters"]:
        counted = ", ".join(f"{name} {count}" for name, count in overview["counters"].items())
        yield f"Counters: {counted}"


def _server(server: dict[str, Any]) -> str:
    if server["version"] is None:
        return "it may not be asked for INFO"
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
