"""The verdict on an owner (the part of a worker that claims jobs): whether it is dead, and why,
from evidence alone.

``reaper.evidence`` gathers the evidence. A reaper calls ``judge`` for each owner in each *pass*
over all owners; a worker's maintenance thread calls it each second for peers on its host;
`superfetch status` calls it to show the state of an owner. Pure functions: a death loses nothing,
since the next pass judges again."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Reason(Enum):
    """The verdict: dead or alive, and for which reason; its text goes to logs and ``status``."""

    # dead
    PROCESS_GONE = "its process is gone"
    PROCESS_ZOMBIE = "its process is a zombie"
    PID_REUSED = "its pid now belongs to another process"
    SUPERSEDED = "its process re-executed itself and registered again"
    HUNG = "it reported that its event loop had not ticked for its owner_ttl"
    DISCONNECTED = "its connections are closed and it missed two heartbeats"
    SILENT = "no heartbeat for its owner_ttl"
    # alive
    HEARD = "its heartbeats arrive"
    RUNNING = "its process runs on this host"
    RUNNING_SILENT = (
        "its process runs on this host but sends no heartbeat (frozen, or cut off from Redis)"
    )
    POOL_LEFT = "its process is gone but its pool processes still run"
    WATCHED = "its heartbeat is late, but not for long enough yet"

    @property
    def dead(self) -> bool:
        return self in _DEAD


_DEAD = {
    *(Reason.PROCESS_GONE, Reason.PROCESS_ZOMBIE, Reason.PID_REUSED),
    *(Reason.SUPERSEDED, Reason.HUNG, Reason.DISCONNECTED, Reason.SILENT),
}
#: The reason of a recovery from the lists of a worker that an earlier pass declared dead.
DECLARED_DEAD_BEFORE = "its worker was declared dead before"

MISSED_HEARTBEATS = 2  # after which the loss of an owner's connections counts as its death


@dataclass(frozen=True)
class Evidence:
    """The evidence on one owner, from one observer. Times are seconds."""

    heartbeat_interval: float  # the owner's setting, as it registered it, not the observer's
    owner_ttl: float
    #: Seconds for which the observer has watched the owner without seeing a heartbeat; None: it has
    #: not watched.
    staleness_s: float | None = None
    process: Reason | None = None  # ``look_at`` on the observer's host; None: the owner is remote
    hung: bool = False  # its last heartbeat said so: its event loop starts and settles no jobs
    superseded: bool = False  # a newer program of the same process has registered
    pool_left: bool = False  # pool processes of it still run (known on the same host alone)
    #: Whether the server still has its connections; None: that cannot be known (a proxy or an ACL
    #: hides them, or they were those of another server, with another run id).
    connected: bool | None = None


def judge(evidence: Evidence) -> Reason:
    """Return the verdict, by the table of docs/inside/how_it_works.md, row by row."""
    silent = evidence.staleness_s or 0.0
    missed = silent >= MISSED_HEARTBEATS * evidence.heartbeat_interval
    if evidence.superseded:
        return Reason.SUPERSEDED
    if evidence.hung:
        return Reason.HUNG
    if evidence.process is Reason.RUNNING:
        return Reason.RUNNING_SILENT if missed else Reason.RUNNING
    # From here on the process is not running, or the owner is on another host. PID_REUSED may be an
    # error: if a clock was set, a start time can be read as another one. So it does not count
    # against an owner with recent heartbeats.
    if evidence.process is not None and (missed or evidence.process is not Reason.PID_REUSED):
        # Pool processes that outlive their parent may still run its jobs. They are given two
        # heartbeat intervals to end.
        if evidence.pool_left and not missed:
            return Reason.POOL_LEFT
        return evidence.process
    if silent >= evidence.owner_ttl:
        return Reason.SILENT
    if missed and evidence.connected is False:
        return Reason.DISCONNECTED
    return Reason.WATCHED if silent > 0 else Reason.HEARD
