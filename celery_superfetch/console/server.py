"""The state of the Redis server as one plain document: memory, persistence, connections, replicas,
and the commands that it refuses.

`superfetch server` and the page call ``server_of``, and show its ``figures``. It only reads: a
death leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..inspector import Inspector
from ..model.dead_job import utc
from ..model.humanize import number, span
from .findings_of_server import of_server
from .memory import memory_of
from .permissions import Refused, findings_of_permissions, refused
from .server_state import server_state

MIB_BYTES = 1024 * 1024

#: Share of the used memory from which on a part is shown with a hint.
LARGE_SHARE = 0.1


class Figure(NamedTuple):
    """A figure of the server as it is shown."""

    name: str
    title: str
    text: str


def server_of(inspector: Inspector, denied: Refused | None = None) -> dict[str, Any]:
    """Read the server, and return the document with its findings.

    Arguments:
        denied: the commands that it refuses (``refused_of``); None: they are not known.
    """
    state, now = server_state(inspector), inspector.database.server_time() / 1000
    fields, _ = inspector.server()
    last = state["last_save"]
    state["last_save_age_s"] = None if last is None else max(0, int(now) - last)
    found = [*of_server(state), *(findings_of_permissions(denied) if denied else ())]
    return {
        "server_time": utc(now),
        "server": state,
        "memory": memory_of(inspector, fields),
        "findings": [finding.as_dict() for finding in found],
        "commands": denied
        and {
            "required": denied.required,
            "optional": denied.optional,
            "keys": denied.names,
            "unknown": sorted(denied.unknown),
        },
    }


def refused_of(inspector: Inspector) -> Refused | None:
    """Return the commands that the server refuses to this user, and those of the app's queue lists;
    None if the server does not say. It opens a connection."""
    return refused(inspector, sorted(inspector.lists))


def figures(document: Mapping[str, Any]) -> list[Figure]:
    """Return the figures of a document of ``server_of`` as they are shown."""
    server = document["server"]
    since = span(server["uptime_s"]) if server["uptime_s"] is not None else "unknown"
    return [
        Figure("version", "Version", _or_unknown(server["version"])),
        Figure("uptime", "Up for", since),
        Figure("role", "Role", _role(server)),
        Figure("memory", "Memory", _memory(server)),
        Figure("policy", "When memory is full", _policy(server)),
        Figure("evicted", "Evicted keys", _or_unknown(server["evicted_keys"])),
        Figure("persistence", "Append-only file", _append_only(server)),
        Figure("snapshot", "Snapshots", _snapshots(server)),
        Figure("connections", "Connections", _connections(server)),
        Figure("replicas", "Replicas", _replica_text(server)),
        Figure("commands", "Commands refused by the ACL", _commands(document["commands"])),
    ]


def size_of(part: Mapping[str, Any]) -> str:
    """Return the size of a part of the memory, and its share of all that is used, as text."""
    if part["bytes"] is None:
        return "unknown"
    share = "" if part["share"] is None else f", {part['share']:.0%}"
    return f"{_mib(part['bytes'])}{share}"


def is_large(part: Mapping[str, Any]) -> bool:
    """Return whether a part of the memory is so large that its hint matters."""
    return part["share"] is not None and part["share"] >= LARGE_SHARE


def largest_of(part: Mapping[str, Any]) -> str:
    """Return the largest key of a part of the memory, and what was not measured, as text."""
    texts = [f"{part['largest']}: {_mib(part['largest_bytes'])}"] if part["largest"] else []
    if 0 < part["measured_keys"] < part["keys"]:
        texts.append(f"{part['measured_keys']} of {part['keys']} keys measured")
    return "; ".join(texts)


def _or_unknown(value: object) -> str:
    return "unknown" if value is None else str(value)


def _role(server: Mapping[str, Any]) -> str:
    role = {"master": "primary", "slave": "replica"}.get(server["role"], server["role"])
    link = f", link to its primary: {server['primary_link']}" if server["primary_link"] else ""
    return _or_unknown(role) + link


def _mib(size: int) -> str:
    return f"{size / MIB_BYTES:,.0f} MiB"


def _memory(server: Mapping[str, Any]) -> str:
    used, most, peak = (server[name] for name in ("used_memory", "maxmemory", "used_memory_peak"))
    if used is None:
        return "unknown"
    limit = f" of {_mib(most)} ({used / most:.0%})" if most else ", no maxmemory"
    return f"{_mib(used)}{limit}" + (f", at most {_mib(peak)} so far" if peak else "")


def _policy(server: Mapping[str, Any]) -> str:
    policy = server["eviction_policy"]
    return f"{policy}: it refuses writes" if policy == "noeviction" else _or_unknown(policy)


def _append_only(server: Mapping[str, Any]) -> str:
    if server["append_only"] is None:
        return "unknown"
    failed = "" if server["append_ok"] else ", the last write failed"
    return ("on" if server["append_only"] else "off") + failed


def _snapshots(server: Mapping[str, Any]) -> str:
    saves, age = server["saves"], server["last_save_age_s"]
    rule = {None: "rule unknown", "": "off"}.get(saves, f"on ({saves})")
    if age is None or not saves:
        return rule
    result = "ok" if server["last_save_ok"] else "failed"
    changes = server["changes_since_save"]
    since = f", {number(changes, 'change')} since" if changes is not None else ""
    return f"{rule}, the last one {span(age)} ago: {result}{since}"


def _connections(server: Mapping[str, Any]) -> str:
    most, refused_count = server["maxclients"], server["rejected_connections"]
    text = _or_unknown(server["connections"]) + (f" of {most}" if most else "")
    return f"{text}, {refused_count} refused since its start" if refused_count else text


def _replica_text(server: Mapping[str, Any]) -> str:
    rows = [
        f"{row['address']} {row['state']}, {row['lag_bytes']:,} bytes behind"
        + (f", last heard {span(row['lag_s'])} ago" if row["lag_s"] is not None else "")
        for row in server["replica_rows"]
    ]
    return "; ".join(rows) or _or_unknown(server["replicas"])


def _commands(denied: Mapping[str, Any] | None) -> str:
    if denied is None:
        return "unknown: the server does not say"
    texts = [
        f"{title}: {', '.join(names)}"
        for title, names in (
            ("needed", denied["required"]),
            ("optional", denied["optional"]),
            ("keys", denied["keys"]),
        )
        if names
    ]
    return "; ".join(texts) or "none"
