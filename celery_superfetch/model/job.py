"""A job in flight (``Job``), what the server remembers of its earlier deliveries (``Counters``),
and what can be read from its message.

A job is in flight while an *owner* (the part of a worker that claims jobs) has claimed it: moved it
from its queue to the owner's private list on the server. Every package uses this file: the
transport claims jobs, owners and reapers move them, commands show them. Values and pure functions:
a death loses nothing, since the server has the counters.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from hashlib import sha1
from math import inf
from typing import Any, NamedTuple

from .foreign import one_line
from .records import parsed_json, whole

DELIVERY = "superfetch"  # header of a delivery, and so a task's ``self.request.superfetch``
#: Errors that reading a message may raise, whatever its bytes are.
UNREADABLE = ValueError, LookupError, TypeError, AttributeError, RecursionError


class Job(NamedTuple):
    """One job in flight: its owner, the list it came from and its exact bytes."""

    owner: str  #: ``host|pid|nonce``
    queue_list: str  #: the list of the queue, with kombu's suffix for a priority other than 0
    payload: bytes  #: the message, as its producer sent it
    claim_id: str = ""  #: the name of this claim, unique within its owner

    @property
    def title(self) -> str:
        envelope = parse(self.payload)
        unnamed = "unknown task" if envelope.message is not None else "unparseable payload"
        # A producer may have given them any name: for logs.
        return one_line(f"{envelope.task or unnamed}[{envelope.task_id or digest(self.payload)}]")


class Counters(NamedTuple):
    """The ends of a job's earlier deliveries, counted, as far as the server remembers them: for the
    time of the option `strike_window`."""

    #: Recoveries that may have been the job's own fault: "exact" if it alone ran, or its own pool
    #: process was lost; "suspect" if other jobs ran as well.
    strikes: int = 0
    recoveries: int = 0  # times that it was put back on its queue after its run was lost
    #: Its recoveries, the oldest first: owner, reason, strike ("exact", "suspect" or ""), at
    #: (server s), and stop where it was one.
    history: tuple[Mapping[str, Any], ...] = ()
    #: Number of its next solo run, from 1; 0: it is not on probation. A job on probation is a
    #: suspect: it runs when its worker can run it with no other job.
    solo_runs: int = 0
    requeues: int = 0  # times that a worker gave it back to its queue on purpose: no fault of it
    token: int = 0  # the fencing token of its latest claim
    first_claim: int = 0  # number of its first claim; 0: it was not claimed before
    steps: str = ""  # its steps note: which steps earlier runs have published (``model/step.py``)
    stops: int = 0  # runs that were cut short because their worker was stopping
    deaths: int = 0  # strikes in which the owner died; the others: only the job's pool process
    alongside: int = 0  # deaths of the owner while other jobs ran as well

    @property
    def first_claimed_at(self) -> int:
        """Time of its first claim (s, by its owner's clock; 0: this claim is the first)."""
        return self.first_claim // CLAIMS_A_SECOND

    @classmethod
    def read(cls, **found: Any) -> Counters:
        """Make it of fields as the server returns them: None for a field that was never written."""
        as_read: dict[str, Any] = {
            "history": lambda raw: tuple(filter(_is_event, parsed_json(raw, list[Any]()))),
            "steps": lambda raw: raw.decode(errors="replace"),
        }
        return cls(**{name: as_read.get(name, whole)(raw) for name, raw in found.items() if raw})

    def as_header(self) -> dict[str, int]:
        """Return the fields that a task sees in ``self.request.superfetch``."""
        names = "recoveries", "strikes", "requeues", "stops"
        return {name: getattr(self, name) for name in names}


class Claimed(NamedTuple):
    """A claimed job and its history; None: the server remembers no earlier delivery."""

    job: Job
    counters: Counters | None = None

    @property
    def solo_runs(self) -> int:
        """The number of its next solo run, from 1; 0: the job is no suspect."""
        return self.counters.solo_runs if self.counters else 0

    @property
    def first_claimed(self) -> int:
        """Time of the job's first claim (s, by its owner's clock; 0: not known)."""
        before = self.counters.first_claimed_at if self.counters else 0
        return before or claimed_at(self.job.claim_id) or 0

    @property
    def token(self) -> int:
        """The fencing token: greater with each claim of the job (``token`` in ``shared.lua``)."""
        number = claim_number(self.job.claim_id)
        return max(number, self.counters.token + 1) if self.counters else number


class Envelope(NamedTuple):
    """The parts of a payload that this package reads; ``message`` is None if the payload is no
    message of kombu."""

    message: dict[str, Any] | None = None
    task: str | None = None
    task_id: str | None = None
    eta: float = 0.0  # when it is due (s since the epoch); 0 where it is at once, or cannot be read


def digest(payload: bytes) -> str:
    """Return the name of a job in this package's keys, made of its bytes. A redelivery has the
    same; a retry, which Celery sends as another message, has another."""
    return sha1(payload, usedforsecurity=False).hexdigest()


#: Claim numbers in a second. A number is the time of the owner's host in s times this, or greater:
#: numbers only grow, also if the clock was set back or there are many claims in a moment. Lua
#: counts exactly to 2 ** 53, which is reached in the year 2242.
CLAIMS_A_SECOND = 2**20


def claim_id(number: int, queue_list: str) -> str:
    """Return the name of a claim: its number, and the queue list that the job came from."""
    return f"{number}:{queue_list}"


def claim_number(claim_id: str) -> int:
    """Return the number of a claim, greater for each later claim of an owner; 0: the name has no
    number."""
    try:  # asked for each job: ``suppress`` would double its cost
        return int(claim_id.partition(":")[0])
    except ValueError:
        return 0


def claimed_at(claim_id: str) -> int | None:
    """Return when a claim was made (s, by its owner's clock); None: its name does not say."""
    return claim_number(claim_id) // CLAIMS_A_SECOND or None


def queue_list_of(claim_id: str) -> str:
    return claim_id.partition(":")[2]


def parse(payload: bytes) -> Envelope:
    """Read a payload; never raises. It is a message if kombu could deliver it."""
    try:
        message = json.loads(payload)
        properties = message["properties"]
        properties["delivery_tag"]
        properties["delivery_info"]["routing_key"]
        headers = message.get("headers") or {}
        hash(properties["delivery_tag"])  # kombu keeps messages by their tags
    except UNREADABLE:
        return Envelope()
    if not isinstance(headers, dict):
        return Envelope()
    fields = headers
    if "task" not in headers:  # protocol 1: the body names the task, if the body can be read
        with suppress(*UNREADABLE):
            fields = read_body(message)
    fields = fields if isinstance(fields, dict) else {}
    task, *ids = fields.get("task"), fields.get("id"), properties.get("correlation_id")
    return Envelope(
        message,
        task if isinstance(task, str) else None,
        next((id for id in ids if id and isinstance(id, str)), None),
        eta_of(fields.get("eta")),
    )


def read_body(message: dict[str, Any], most: float = inf) -> Any:
    """Return the body of a message, if that is safe: only JSON of at most ``most`` characters is
    read, and nothing is unpickled.

    Raises:
        NotRead: it was not read; the text says why.
        Exception: one of the classes in ``UNREADABLE``: the body is no JSON.
    """
    kind, headers, body = message.get("content-type"), message.get("headers") or {}, message["body"]
    if kind != "application/json":
        raise NotRead(kind)
    if headers.get("compression"):
        raise NotRead(f"compressed, {headers['compression']}")
    if len(body) > most:
        raise NotRead(f"{len(body)} characters")
    if message["properties"].get("body_encoding") == "base64":
        body = base64.b64decode(body)
    return json.loads(body)


class NotRead(ValueError):
    """Refusal to decode the body of a message; the text says why."""


def _is_event(entry: Any) -> bool:
    at = entry.get("at", 0) if isinstance(entry, dict) else None
    # Anything else, or a time after the year 5138, cannot be shown. Without ``at`` it is valid.
    return isinstance(at, (int, float)) and 0 <= at < 1e11


#: The first and the last second that a datetime can say in UTC (s since the epoch).
FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799


def eta_of(text: Any) -> float:
    """Return the time in Celery's header ``eta`` (s since the epoch; 0: it cannot be read): ISO
    8601, in UTC if it has no time zone. It is limited to what a datetime can say in UTC, since
    commands that show it would fail otherwise."""
    try:
        eta = datetime.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 reads no Z
        at = (eta if eta.tzinfo else eta.replace(tzinfo=timezone.utc)).timestamp()
        return min(max(at, FIRST_SECOND), LAST_SECOND)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return 0.0
