"""The verdict on an owner: whether it is dead, and why, from evidence alone.

``reaper.evidence`` gathers the evidence. Reapers call ``judge`` for each owner in each pass, and a
worker's maintenance thread each second for peers on its host. Pure functions: a death loses
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Reason(Enum):
    """Why an owner was judged as it was; the text goes to logs and ``status``."""

    # dead
    PROCESS_GONE = "its process is gone"
    PROCESS_ZOMBIE = "its process is a zombie"
    PID_REUSED = "its pid belongs to another process now"
    SUPERSEDED = "the same process re-executed and registered anew"
    HUNG = "it says that its event loop has not turned for its owner_ttl"
    DISCONNECTED = "its connections are gone and it missed two heartbeats"
    SILENT = "no heartbeat for its owner_ttl"
    # alive
    HEARD = "its heartbeats are heard"
    RUNNING = "its process runs on this host"
    RUNNING_SILENT = "its process runs on this host but sends no heartbeat (frozen, or cut off)"
    POOL_LEFT = "its process is gone but its pool processes still run"
    WATCHED = "silent; not yet for long enough"

    @property
    def dead(self) -> bool:
        return self in _DEAD


_DEAD = {
    *(Reason.PROCESS_GONE, Reason.PROCESS_ZOMBIE, Reason.PID_REUSED),
    *(Reason.SUPERSEDED, Reason.HUNG, Reason.DISCONNECTED, Reason.SILENT),
}
MISSED_HEARTBEATS = 2  # after which the loss of an owner's connections counts as its death


@dataclass(frozen=True)
class Evidence:
    """All that a judge may know of one owner. Times are seconds."""

    heartbeat_interval: float  # the owner's own settings, as it registered them, not the judge's
    owner_ttl: float
    #: How long the judge *watched* the owner's heartbeat stand still; None: not watched yet.
    silent_for: float | None = None
    process: Reason | None = None  # ``look_at`` on the judge's own host; None: not the same ground
    hung: bool = False  # its last heartbeat said so: its event loop starts and settles no jobs
    superseded: bool = False  # a newer program of the same process has registered
    pool_left: bool = False  # pool processes it registered still run (asked on the same ground)
    #: Whether the server still has its connections; None: unusable (proxy, ACL, other run id).
    connected: bool | None = None


def judge(evidence: Evidence) -> Reason:
    """Return the verdict, by the table of docs/inside/how_it_works.md, row by row."""
    silent = evidence.silent_for or 0.0
    missed = silent >= MISSED_HEARTBEATS * evidence.heartbeat_interval
    if evidence.superseded:
        return Reason.SUPERSEDED
    if evidence.hung:
        return Reason.HUNG
    if evidence.process is Reason.RUNNING:
        return Reason.RUNNING_SILENT if missed else Reason.RUNNING
    # PID_REUSED may be an error: if a clock was set, a start time can be read as another one. An
    # owner with recent heartbeats lives.
    if evidence.process is not None and (missed or evidence.process is not Reason.PID_REUSED):
        # Pool processes that outlive their parent may still be at work on its jobs, but for no
        # longer than two heartbeats.
        if evidence.pool_left and not missed:
            return Reason.POOL_LEFT
        return evidence.process
    if silent >= evidence.owner_ttl:
        return Reason.SILENT
    if missed and evidence.connected is False:
        return Reason.DISCONNECTED
    return Reason.WATCHED if silent > 0 else Reason.HEARD
