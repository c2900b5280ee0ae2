"""A job in flight (``Job``), its history (``Counters``), and what can be read from its message.

Every room uses it: the transport claims jobs, owners and reapers move them, commands show them.
Values and pure functions: a death loses nothing.
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
    """One job in flight: whose it is, the list it came from and its exact bytes."""

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
    """The history of a job: how its earlier deliveries ended, as far as the server remembers."""

    strikes: int = 0
    recoveries: int = 0
    #: Oldest first: owner, reason, strike ("exact", "suspect" or ""), at (server s), and stop where
    #: it was one.
    history: tuple[Mapping[str, Any], ...] = ()
    probation: int = 0  # number of its next solo run, from 1; 0: it is no suspect
    requeues: int = 0
    token: int = 0  # of the latest claim
    first_claim: int = 0  # number of the first claim; 0: it was not claimed before
    steps: str = ""  # its steps note: what earlier runs have published (``model/step.py``)
    stops: int = 0  # runs that were cut short because their worker was stopping
    deaths: int = 0  # strikes by the death of an owner, and not of the job's own process
    alongside: int = 0  # those of them in which other jobs ran as well

    @property
    def claimed_at(self) -> int:
        """When it was claimed first (s, by its owner's clock; 0: this claim is the first)."""
        return self.first_claim // CLAIMS_A_SECOND

    @classmethod
    def read(cls, **found: Any) -> Counters:
        """Make it of fields as the server has them; one that was never counted is None there."""
        as_read: dict[str, Any] = {
            "history": lambda raw: tuple(filter(_is_event, parsed_json(raw, list[Any]()))),
            "steps": lambda raw: raw.decode(errors="replace"),
        }
        return cls(**{name: as_read.get(name, whole)(raw) for name, raw in found.items() if raw})

    def as_header(self) -> dict[str, int]:
        """Return what a task sees of it in ``self.request.superfetch``."""
        names = "recoveries", "strikes", "requeues", "stops"
        return {name: getattr(self, name) for name in names}


class Claimed(NamedTuple):
    """A claimed job and its history; None: the server remembers no earlier delivery."""

    job: Job
    counters: Counters | None = None

    @property
    def probation(self) -> int:
        """The number of its next solo run, from 1; 0: the job is no suspect."""
        return self.counters.probation if self.counters else 0

    @property
    def first_claimed(self) -> int:
        """When the job was claimed for the first time (s, by its owner's clock; 0: not known)."""
        before = self.counters.claimed_at if self.counters else 0
        return before or claimed_at(self.job.claim_id) or 0

    @property
    def token(self) -> int:
        """The fencing token: greater with each claim of the job (``token`` in ``shared.lua``)."""
        number = claim_number(self.job.claim_id)
        return max(number, self.counters.token + 1) if self.counters else number


class Envelope(NamedTuple):
    """The parts of a payload that this package reads; ``message`` is None if it is no message of
    kombu."""

    message: dict[str, Any] | None = None
    task: str | None = None
    task_id: str | None = None
    eta: float = 0.0  # when it is due (s since the epoch); 0 where it is at once, or cannot be read


def digest(payload: bytes) -> str:
    """Return the name of a job in this package's keys: a redelivery has the same, a retry another
    one."""
    return sha1(payload, usedforsecurity=False).hexdigest()


#: Claim numbers in a second: a number is the owner's time in s times this, or greater. Lua counts
#: exactly to 2 ** 53, which is reached in the year 2242.
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
        hash(properties["delivery_tag"])
    except UNREADABLE:
        return Envelope()
    if not isinstance(headers, dict):
        return Envelope()
    fields = headers
    if "task" not in headers:  # protocol 1: the body says it, as far as that can be read
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
        UNREADABLE: one of these: it is no JSON.
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


class NotRead(ValueError): ...


def _is_event(entry: Any) -> bool:
    at = entry.get("at", 0) if isinstance(entry, dict) else None
    return isinstance(at, (int, float)) and 0 <= at < 1e11  # what is no time cannot be shown


#: What a datetime can say in UTC (s since the epoch).
FIRST, LAST = -62_135_596_800, 253_402_300_799


def eta_of(text: Any) -> float:
    """Return the time in Celery's header ``eta`` (s since the epoch; 0: it cannot be read): ISO
    8601, in UTC if it has no time zone. It is kept within what a datetime can say in UTC: commands
    that show it would fail."""
    try:
        eta = datetime.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 reads no Z
        at = (eta if eta.tzinfo else eta.replace(tzinfo=timezone.utc)).timestamp()
        return min(max(at, FIRST), LAST)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return 0.0
