"""A job as Redis holds it: its bytes, its name in our keys, and what can be read from it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha1
from typing import Any, NamedTuple

#: Header of a delivery, and so a task's ``self.request.superfetch``: its ``Earlier`` as a dict.
EARLIER = "superfetch"


class Job(NamedTuple):
    """One job in flight: whose it is, the list it came from and its exact bytes.

    ``claim_id`` tells the claims of one owner apart, also two of the same bytes; it is empty
    for a job that was read from somebody else's private list.
    """

    owner: str
    queue_list: str
    payload: bytes
    claim_id: str = ""

    @property
    def title(self) -> str:
        """The job as logs name it."""
        envelope = parse(self.payload)
        known = envelope.message is not None
        name = envelope.task or ("unknown task" if known else "unparseable payload")
        return f"{name}[{envelope.task_id or digest(self.payload)}]"


class Earlier(NamedTuple):
    """What ended the earlier deliveries of a job, as far as its counters remember."""

    recoveries: int = 0
    strikes: int = 0
    requeues: int = 0


class Claimed(NamedTuple):
    """A claimed job and its earlier deliveries; None: nobody remembers any."""

    job: Job
    earlier: Earlier | None = None

    @property
    def redelivered(self) -> bool:
        """Whether it was delivered before."""
        return self.earlier is not None


@dataclass(frozen=True)
class Envelope:
    """What a payload says of itself; ``message`` is None where it is not a kombu message."""

    message: dict[str, Any] | None = None
    task: str | None = None
    task_id: str | None = None


def digest(payload: bytes) -> str:
    """The name of a job in our keys: a redelivery does not change it, a retry does."""
    return sha1(payload, usedforsecurity=False).hexdigest()


def parse(payload: bytes) -> Envelope:
    """Read a payload; never raises. It is a message if kombu could deliver it."""
    try:
        message = json.loads(payload)
        properties = message["properties"]
        properties["delivery_tag"]
        properties["delivery_info"]["routing_key"]
        headers = message.get("headers") or {}
        task, task_id = headers.get("task"), headers.get("id")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Envelope()
    return Envelope(
        message,
        task if isinstance(task, str) else None,
        task_id if isinstance(task_id, str) else properties.get("correlation_id"),
    )
