"""How ``celery superfetch status`` looks: first whether all is well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..model.facts import STUCK
from ..model.verdict import Reason
from ..operate.health import by_queue, findings, verdict
from ..operate.overview import overview_of
from ..operate.words import ago, number, span
from .session import Session
from .tables import Tables

STYLES = {"critical": "bold red", "warning": "yellow", "note": ""}

MOST = 20  # rows of a table, and findings, on a terminal: more push the verdict off the screen

OWNERS = ("Node", "Owner", "State", "Heard", "Running", "Reserved", "ETA", "App", "Reason")
QUEUES = ("Queue", "Waiting", "Probation", "Oldest", "Consumers")
DEATHS = ("Died", "Node", "Owner", "Recovered", "Killed", "Reason")


def say_status(session: Session, wide: bool = False) -> None:
    found = overview_of(session.app, session.reaper)
    document = {"findings": [one._asdict() for one in findings(found)], **found}
    session.say(document, lambda: print_status(session.tables, found, wide))


def print_status(tables: Tables, found: dict[str, Any], wide: bool) -> None:
    """Print an ``overview_of``; ``wide`` for the ids of owners and all else that is left out."""
    if wide:
        tables.widen()
    _health(tables, found)
    _owners(tables, found, wide)
    _queues(tables, found["queues"], wide)
    _deaths(tables, found, wide)
    _rest(tables, found)


def _health(tables: Tables, found: dict[str, Any]) -> None:
    said = findings(found)
    bad = said[:1] if said and said[0].level != "note" else []
    tables.line(verdict(said, found), STYLES[bad[0].level] if bad else "bold green")
    rest = said[len(bad) :]
    shown = rest if tables.wide else rest[:MOST]
    for one in shown:
        tables.line(f"{one.level.capitalize()}: {one}", STYLES[one.level])
    if len(shown) < len(rest):
        tables.line(f"and {len(rest) - len(shown)} more: --wide shows all")


def _owners(tables: Tables, found: dict[str, Any], wide: bool) -> None:
    tables.line()
    # Whoever needs a look stands first.
    owners = sorted(found["owners"], key=lambda one: (one["verdict"] == "alive", one["node"]))
    titles = [title for title in OWNERS if wide or title != "Owner"]
    spare = [] if wide else ["App", "Reason"]
    if not any(_reason(one) for one in owners):
        titles.remove("Reason")
        spare = spare[:1]
    tables.table(titles, map(_owner, owners), spare, MOST)
    if not owners:
        tables.line("No owners are registered: no worker of an app with install() runs.")
    if tombs := found["tombstones"]["owners"]:
        jobs = found["tombstones"]["in_flight"]
        tables.line(f"Reaped lately: {tombs}; {jobs} jobs of theirs are left to the next pass.")


def _owner(row: dict[str, Any]) -> dict[str, object]:
    alive, stuck, long = row["verdict"] == "alive", row["state"] == STUCK, row["stuck"]
    state = row["state"] if alive else f"{row['verdict']}, {STUCK}" if stuck else row["verdict"]
    return {
        **row,
        "node": row["node"] or row["owner"],
        "state": (state, "green" if alive else "bold red"),
        "heard": f"{span(row['heartbeat_age'])} ago",
        "running": (f"{row['running']}, {len(long)} stuck", "yellow") if long else row["running"],
        "reason": _reason(row),
    }


def _reason(row: dict[str, Any]) -> str:
    """Why it is taken for what it is; nothing where all is as it should be."""
    usual = row["reason"] in (Reason.HEARD.value, Reason.RUNNING.value)
    return "" if usual else str(row["reason"])


def _queues(tables: Tables, lists: Sequence[dict[str, Any]], wide: bool) -> None:
    """A row for each queue, with all its priorities; with ``--wide`` a column for each of them."""
    lengths = {(row["queue"], row["priority"]): row["length"] for row in lists}
    steps = sorted({step for _, step in lengths}) if wide else []
    rows = []
    for queue in by_queue(lists):
        each = {f"priority_{step}": lengths.get((queue["queue"], step)) for step in steps}
        rows.append({**_queue(queue), **each})
    tables.line()
    tables.table((*QUEUES, *(f"Priority {step}" for step in steps)), rows, most=MOST)


def _queue(row: Mapping[str, Any]) -> dict[str, object]:
    error, waiting, probation = row["error"], row["waiting"], row["probation"]
    return {
        "queue": row["queue"],
        "waiting": (error, "bold red") if error else waiting,
        "probation": (probation, "yellow") if probation else 0,
        "oldest": span(row["oldest"]) if row["oldest"] else None,
        "consumers": (0, "bold red") if row["unserved"] else row["consumers"],
    }


def _deaths(tables: Tables, found: dict[str, Any], wide: bool) -> None:
    if found["deaths"]:
        tables.line("\nLast deaths:")
        titles = [title for title in DEATHS if wide or title != "Owner"]
        rows = ({**row, "died": ago(row["at"], found["server_time"])} for row in found["deaths"])
        tables.table(titles, rows)


def _rest(tables: Tables, found: dict[str, Any]) -> None:
    tables.line()
    if last := found["last_pass"]:
        tables.line(
            f"Last pass: {span(last['age'])} ago by {last['by']}, {number(last['owners'], 'owner')}"
            f", {last['recovered']} jobs recovered, {last['killed']} killed, "
            f"{number(last['errors'], 'error')}, {last['seconds']:g} s"
        )
    else:
        tables.line("Last pass: none is known of")
    if found["unacked"]:
        tables.line(f"Unacked by stock workers: {number(found['unacked'], 'job')}")
    dead = found["dead_set"]
    tables.line(
        f"Dead set: {number(dead['size'], 'job')} of at most {dead['limit']}, "
        f"{dead['unannounced']} unannounced"
    )
    tables.line(f"Server: {_server(found['server'])}")
    if found["counters"]:
        counted = ", ".join(f"{name} {count}" for name, count in found["counters"].items())
        tables.line(f"Counters: {counted}")


def _server(server: dict[str, Any]) -> str:
    if server["version"] is None:
        return "it may not be asked for INFO"
    memory = f"{(server['used_memory'] or 0) / 1024**2:.0f} MiB"
    if server["maxmemory"]:
        memory += f" of {server['maxmemory'] / 1024**2:.0f} MiB"
    replicas = number(server["replicas"] or 0, "replica")
    saves = {None: "", "": ", no RDB saves"}.get(server["saves"], f", RDB saves {server['saves']}")
    return (
        f"{server['version']}, {server['role']}, {memory}, {server['eviction_policy']}, "
        f"AOF {'on' if server['append_only'] else 'off'}{saves}, {replicas}"
    )
