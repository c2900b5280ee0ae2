"""The steps of a job: messages that it sends because it ends. Which they are, and their names."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import suppress
from contextvars import ContextVar
from hashlib import sha1
from typing import Any, NamedTuple
from uuid import NAMESPACE_OID, uuid5

from .job import UNREADABLE

#: How the note of a step begins, and that of one by which a job hands itself on: its retry, or what
#: replaces it. Nothing of that job is left to do then.
STEP, ITSELF = ",", "!"

#: Where a message has the signatures that follow it.
FOLLOWING = ("callbacks", "errbacks", "chord", "chain")


class Fenced(BaseException):
    """A job hands on a step that is another's to hand on. Of an ``Exception`` Celery would make a
    failure of the job."""


class Claim(NamedTuple):
    """What the process that runs a job is told of its claim."""

    place: str  # of the database
    private: str  # the key of the private list that it is in
    id: str  # empty: it does not last until the job ends
    token: int
    steps: str = ""  # the notes of what earlier runs have handed on

    @property
    def is_over(self) -> bool:
        """Whether an earlier run has handed the job itself on."""
        return ITSELF in self.steps


class Step(NamedTuple):
    """What is handed on just now."""

    claim: Claim
    title: str  # of the job
    task_id: str
    name: str  # of its task
    facts: tuple[Any, ...]  # by which each run knows it
    kind: str = STEP
    earlier: str = ""  # what was handed on for the same end under another claim

    def note(self, queue: str) -> str:
        """As the server has it: short, since it looks through all of a job."""
        whole = "\n".join(map(str, (*self.facts, self.name, queue)))
        return self.kind + urlsafe_b64encode(sha1(whole.encode()).digest()[:9]).decode()


class Run:
    """A job as it runs: what its message names for its end."""

    def __init__(self, claim: Claim, task_id: str, title: str, group: str | None = None) -> None:
        self.claim, self.task_id, self.title, self.group = claim, task_id, title, group
        #: What the job for which it speaks has handed on, where that is another.
        self.earlier = ""
        #: Of all that it may send for its end, but for itself.
        self.ids: frozenset[str] = frozenset()

    def read(self, embed: Any, task_id: str) -> None:
        """Learn what the message of a job has for its end. What has no id gets one, the same in
        each run, where Celery would make one up each time."""
        for name in FOLLOWING if isinstance(embed, dict) else ():
            if signatures := embed.get(name):
                with suppress(*UNREADABLE):  # Celery says so where it comes to that
                    _give_ids(signatures, f"{task_id} {name}")
                    self.ids |= ids_of(signatures)


#: The job that runs here, and what it hands on just now.
running: ContextVar[Run | None] = ContextVar("running", default=None)
handing: ContextVar[Step | None] = ContextVar("handing", default=None)


def _parts(signatures: Any) -> Iterator[tuple[str, Any]]:
    """What a signature is made of, and what it has for its own end; or those of a list."""
    if isinstance(signatures, (list, tuple)):
        yield from ((str(at), part) for at, part in enumerate(signatures))
    elif isinstance(signatures, dict):
        parts = dict(signatures.get("kwargs") or {}) if signatures.get("subtask_type") else {}
        parts.update(signatures.get("options") or {})
        for name in ("tasks", "header", "body", "link", "link_error", "chord"):
            if parts.get(name):
                yield name, parts[name]


def _give_ids(signatures: Any, seed: str) -> None:
    if isinstance(signatures, dict):
        options = signatures.setdefault("options", {})
        if signatures.get("subtask_type") != "chain":  # whose id is that of its last part
            options.setdefault("task_id", str(uuid5(NAMESPACE_OID, seed)))
        seed = options.get("task_id", seed)
    for name, part in _parts(signatures):
        _give_ids(part, f"{seed} {name}")


def ids_of(signatures: Any) -> frozenset[str]:
    return frozenset(filter(None, _ids(signatures)))


def _ids(signatures: Any) -> Iterator[str | None]:
    if isinstance(signatures, dict):
        yield signatures["options"].get("task_id")
    for _, part in _parts(signatures):
        yield from _ids(part)
