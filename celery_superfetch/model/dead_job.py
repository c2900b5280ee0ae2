"""A job of the dead set (``DeadJob``), its record there, and the filter that selects some of the
jobs (``DeadFilter``, ``Conditions``).

A reaper (for jobs of a dead worker) and ``Settlement`` (in a worker that lives) make a ``DeadJob``
of each job that they dead-letter; ``store.dead_set`` writes and reads the records, and makes the
filters; commands, the console and the failure notification show the jobs. Values without I/O: a
death loses nothing.

A failure notification (the *notice*) is a job that announces the dead job to its caller. How far it
came is in the dead job's record (``Progress``): if its process dies, the notice is recovered as any
job is, and its next run continues from there.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from math import inf, isnan
from typing import Any, NamedTuple, TypedDict

from ..errors import BadFilter
from .arguments import arguments
from .foreign import TEXT_MAX_CHARS
from .job import FIRST_SECOND, LAST_SECOND, UNREADABLE
from .records import parsed_json, text_of, whole
from .strikes import Recovery

#: An id in the dead set: the digest of the payload. If a job with the same bytes was there already,
#: a number follows.
FULL_ID = re.compile(r"[0-9a-f]{40}(-[0-9]{1,20})?")


#: Fields that are copied as they are: name in the record -> attribute of ``DeadJob``.
STORED = {"queue": "queue_list", "app": "app_name", "node": "node", "reason": "reason"}
STORED |= {name: name for name in ("task", "task_id", "owner", "strikes", "recoveries", "stops")}
STORED |= {name: name for name in ("first_claimed", "never_ran", "whole_bytes", "notice")}

HEAD_BYTES = 4096  # bytes that are kept of a message that is too long to be kept whole

CUT = (
    "only the first bytes of job {!r} were kept (its message had {:,} bytes), so it cannot be "
    "retried. Publish it again from its sender, then delete this dead job"
)


def utc(seconds: float | None) -> str | None:
    """Format a time of the server's clock by ISO 8601, limited to the range of a datetime; None
    where it is not known."""
    if seconds is None or isnan(seconds):
        return None
    at = min(max(seconds, FIRST_SECOND), LAST_SECOND)
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds")


class Progress(NamedTuple):
    """Progress of the announcement of a dead job, over all runs of its failure notification."""

    signalled: bool = False  #: ``job_killed`` was sent
    called: bool = False  #: its errbacks were published, and its chord was failed
    failures: int = 0  #: tries that failed

    @classmethod
    def of(cls, value: Any) -> Progress:
        """Read what ``as_record`` has made; from anything else, no progress."""
        fields = value if isinstance(value, dict) else {}
        return cls(
            signalled=fields.get("signalled") is True,
            called=fields.get("called") is True,
            failures=whole(fields.get("failures")),
        )

    def as_record(self) -> dict[str, Any]:
        """Return the fields in the record of a dead job; none where there is no progress."""
        return {"progress": self._asdict()} if self != NO_PROGRESS else {}


NO_PROGRESS = Progress()


@dataclass(frozen=True)
class DeadJob:
    """A dead-lettered job."""

    id: str  #: its id in the dead set
    payload: bytes  #: the message, as its producer sent it
    queue_list: str  #: the list of its queue, with kombu's suffix for a priority other than 0
    reason: str  #: why it was dead-lettered; for most jobs the reason of the last lost run
    task: str | None  #: name of its task; None if the payload does not say
    task_id: str | None  #: Celery's id of the task; None if the payload does not say
    #: Name of its last owner's Celery app; empty if the app has no name, or for a kombu consumer
    #: that is no Celery worker.
    app_name: str
    node: str  #: Celery's name of its last owner; empty for a kombu consumer
    owner: str  #: its last owner, the worker that had claimed it: ``host|pid|nonce``
    strikes: int  #: number of its strikes: lost runs for which the job itself may be to blame
    recoveries: int  #: number of times that an owner lost it, the last one included
    #: Its lost runs, the oldest first; the last one led to the dead set. Each has ``owner``,
    #: ``reason``, ``strike`` (``exact``, ``suspect`` or empty) and ``at`` (s, server's clock).
    history: tuple[Mapping[str, Any], ...] = ()
    died_at: int = 0  #: when it was dead-lettered, by the server's clock, in ms
    # The steps note: ``kill.lua`` adds it to the record, from the job's claim.
    #: Which of its steps its runs have published. (A step is a message that a job publishes because
    #: it ends.) If it is put back, its next run publishes the others.
    steps: str = ""
    stops: int = 0  #: runs that were cut short because their worker was stopping
    #: When it was claimed for the first time (s, by its owner's clock; 0: not known).
    first_claimed: int = 0
    #: It never ran: its task was unknown, or it could not be received or read.
    never_ran: bool = False
    #: Size of the message, if ``payload`` is only its first bytes; 0: the payload is whole.
    whole_bytes: int = 0
    #: Celery's id of the failure notification that may announce it; empty: any may. A notification
    #: with another id, which a producer may have sent, has no effect.
    notice: str = ""
    progress: Progress = NO_PROGRESS  #: how far its announcement has come

    @property
    def parsed(self) -> bool:
        """False for a payload that is no message: it has no task to run and no caller to inform."""
        return self.task is not None

    @property
    def died(self) -> float | None:
        """The time when it was dead-lettered (s, by the server's clock). None if this process has
        just dead-lettered it, and has not read the time from the server."""
        return self.died_at / 1000 if self.died_at else None

    def as_dict(self) -> dict[str, Any]:
        """Return what ``--json`` prints of it; long arguments are cut short."""
        args, kwargs = arguments(self.payload)
        text = _text(self.payload)
        payload = {} if text is None else {"payload": text, "encoding": "utf-8"}
        record = self.record()
        # With this id a producer that sees the console's page could send a notification of its own
        # that is accepted.
        del record["notice"]
        record.pop("progress", None)
        return {
            **record,
            **payload,
            "id": self.id,
            "died_at": self.died_at,
            "time_of_death": utc(self.died),
            "args": args,
            "kwargs": kwargs,
            "history": self.events,
        }

    @property
    def events(self) -> list[dict[str, Any]]:
        """Its history as shown: None stands for what is not known. A last entry whose time is
        missing, or none, has the time of death."""
        blank = {"owner": "", "strike": None, "at": None}
        events = [{**blank, **event} for event in self.history]
        for last in events[-1:]:
            last["at"] = self.died if last["at"] is None else last["at"]
        for event in events:
            event["host"] = str(event["owner"] or "").partition("|")[0]
            event["time"] = utc(event["at"])
        return events

    def record(self) -> dict[str, Any]:
        """Return what the dead set stores: all but the id and the time of death, which index it,
        and ``steps``, which ``kill.lua`` adds."""
        text, coded = _text(self.payload), base64.b64encode(self.payload).decode()
        # As text, unless base64 is shorter: a control character has six bytes in JSON.
        is_text = text is not None and len(json.dumps(text)) <= len(coded) + len('""')
        return {
            "payload": text if is_text else coded,
            "encoding": "utf-8" if is_text else "base64",
            **{name: getattr(self, field) for name, field in STORED.items()},
            "history": list(self.history),
            **self.progress.as_record(),
        }

    def dump(self, most_bytes: int = 0) -> str:
        """Return the record in JSON; if it is longer than ``most_bytes`` (0: any length), return
        that of ``cut``."""
        record = json.dumps(self.record())
        return record if len(record) <= most_bytes or not most_bytes else self.cut().dump()

    def cut(self) -> DeadJob:
        """Return the job with the first bytes of its message, the beginnings of its names and its
        reason, and the last entry of its history: a sender could make the rest long."""
        names = {name: getattr(self, name) for name in ("task", "task_id")}
        return replace(
            self,
            **{name: value and value[:TEXT_MAX_CHARS] for name, value in names.items()},
            payload=self.payload[:HEAD_BYTES],
            reason=self.reason[:TEXT_MAX_CHARS],
            history=self.history[-1:],
            whole_bytes=len(self.payload),
        )

    @classmethod
    def of(cls, recovery: Recovery, id: str = "") -> DeadJob:
        """Return the dead job of a recovery for which KILL was decided. ``id``: its id in the dead
        set; empty: its digest."""
        # A recovery that was counted before is in its history already.
        history = (
            recovery.history if recovery.counted else (*recovery.history, recovery.history_entry)
        )
        # These attributes have the same names in a ``Recovery``.
        stored = {name: value for name, value in vars(recovery).items() if name in STORED.values()}
        return cls(
            id=id or recovery.digest,
            payload=recovery.job.payload,
            queue_list=recovery.job.queue_list,
            owner=str(history[-1].get("owner")),
            history=history,
            **{**stored, "reason": recovery.why_dead},
        )

    @classmethod
    def load(cls, id: str, raw: bytes, died_at: float) -> DeadJob:
        """Read a record. It may be of another version, or written by hand, and one bad record must
        not make the list of all jobs fail: what is missing or broken is empty. If the payload
        cannot be read, the reason says so, unless the record has one."""
        record = parsed_json(raw, dict[str, Any]())
        payload = _payload(record)
        names = {field: name for name, field in STORED.items()}
        fields: dict[str, Any] = {
            field: text_of(record.get(names[field])) for field in DEAD_JOB_TEXTS
        }
        fields |= {field: whole(record.get(field)) for field in DEAD_JOB_COUNTS}
        fields |= {field: text_of(record.get(field)) or None for field in ("task", "task_id")}
        if payload is None:
            fields["reason"] = fields["reason"] or "its record in the dead set cannot be read"
        fields |= {"never_ran": record.get("never_ran") is True}
        history = record.get("history")
        return cls(
            id=id,
            payload=raw if payload is None else payload,
            **fields,
            history=tuple(map(_event, history)) if isinstance(history, list) else (),
            died_at=whole(died_at),
            steps=text_of(record.get("steps")),
            progress=Progress.of(record.get("progress")),
        )


def _text(payload: bytes) -> str | None:
    """Return a message as text; None if it is not UTF-8."""
    try:
        return payload.decode("utf-8")
    except UnicodeDecodeError:
        return None


#: Fields of a job that are text, and those that are numbers.
DEAD_JOB_TEXTS = "queue_list", "app_name", "node", "reason", "owner", "notice"
DEAD_JOB_COUNTS = "strikes", "recoveries", "stops", "first_claimed", "whole_bytes"


def _payload(record: Mapping[str, Any]) -> bytes | None:
    """Return the payload in a record; None where it has none that can be read."""
    text: Any = record.get("payload")
    try:
        return base64.b64decode(text) if record.get("encoding") == "base64" else text.encode()
    except UNREADABLE:
        return None


def _event(entry: Any) -> Mapping[str, Any]:
    """Return an entry of a history with all its fields. It may have been written by hand, and one
    bad entry must not make the others unreadable. A time that is none becomes None."""
    fields = entry if isinstance(entry, Mapping) else {"reason": str(entry)}
    event = {"owner": "", "reason": "", **fields}
    at = event.get("at", 0)
    if not (isinstance(at, (int, float)) and FIRST_SECOND <= at <= LAST_SECOND):
        event["at"] = None
    return event


@dataclass(frozen=True)
class DeadFilter:
    """Conditions on jobs of the dead set; without any, all jobs meet them.

    Raises:
        BadFilter: a condition is empty, or no job could meet them all.
    """

    #: The task's name; ``*`` stands for anything, ``?`` for one character.
    task: str | None = None
    queue: str | None = None  #: The queue's name, with all of its priorities; ``*`` and ``?``, too.
    reason: str | None = None  #: A part of the reason, in any case.
    older_than: float | None = None  #: Seconds since the time of death, at least.
    newer_than: float | None = None  #: Seconds since the time of death, at most.

    def __post_init__(self) -> None:
        older, newer = self.older_than, self.newer_than
        for name, value in vars(self).items():
            # A shell variable that is not set must not mean "all", nor silently nothing.
            if value == "":
                raise BadFilter(f"the filter {name!r} is empty: give it a value, or leave it out")
            if name.endswith("_than") and value is not None and not 0 <= value < inf:
                raise BadFilter(
                    f"the filter {name!r} must be a number of seconds from 0 on, got {value!r}"
                )
        if older is not None and newer is not None and older >= newer:
            raise BadFilter(
                f"the filters exclude each other: no job died both more than {older:g} s ago and "
                f"less than {newer:g} s ago"
            )

    def window(self, now: int) -> tuple[float, float]:
        """Return the earliest and the latest time of death, both included; all in server ms."""
        earliest = -inf if self.newer_than is None else now - self.newer_than * 1000
        latest = inf if self.older_than is None else now - self.older_than * 1000
        return earliest, latest

    def takes(self, job: DeadJob, queue: str) -> bool:
        """Return whether a job of a queue meets the conditions other than those of its age."""
        return (
            (self.task is None or _like(job.task or "", self.task))
            and (self.queue is None or _like(queue, self.queue))
            and (self.reason is None or self.reason.casefold() in job.reason.casefold())
        )


class Conditions(TypedDict, total=False):
    """The conditions of a ``DeadFilter`` as keyword arguments."""

    task: str | None
    queue: str | None
    reason: str | None
    older_than: float | None
    newer_than: float | None


def _like(name: str, pattern: str) -> bool:
    """Return whether a name matches a pattern, in which brackets stand for themselves."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))
