"""The steps of a job: the messages that it publishes because it ends. What names them, and how the
next run of the job knows them again."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from hashlib import sha1
from typing import Any, NamedTuple
from uuid import NAMESPACE_OID, uuid5

from .job import UNREADABLE

#: Stands in a steps note once the job has published its own retry, or what replaces it, and ended
#: with that: nothing of the job is left to do.
ITSELF = "!"

#: One part of a steps note: a family of steps, and the first and the last number of it that was
#: published. A family is published in the order of its numbers: 20,000 steps are one part.
PUBLISHED = re.compile(r"(\w+):(\d+)-(\d+);")

#: Where a message names the signatures that follow it.
FOLLOWING = ("callbacks", "errbacks", "chord", "chain")

#: Signatures that are not published themselves: what they contain is.
CONTAINERS = frozenset({"group", "chain", "chord"})


class Fenced(BaseException):
    """A job publishes a step that now belongs to another owner. As an ``Exception`` Celery would
    store it as a failure of the job."""


class Claim(NamedTuple):
    """What the process that runs a job knows of the claim."""

    place: str  # of the database
    private: str  # the key of the private list that it is in
    id: str  # empty: it does not last until the job ends
    token: int
    steps: str = ""  # the steps note that earlier runs have left
    since: float = 0.0  # when the message was claimed before (s; 0: not known)

    @property
    def is_over(self) -> bool:
        """Whether an earlier run has ended with its own retry, or with what replaces the job."""
        return ITSELF in self.steps


class Step(NamedTuple):
    """The step that is published just now."""

    run: Run
    task_id: str
    task: str  # its name
    family: tuple[Any, ...]
    number: int
    is_itself: bool = False  # it may be the job's last word: its retry, or what replaces it

    def name(self, queue: str = "") -> str:
        """What the steps note knows it by; ``queue`` only where the message goes to several."""
        whole = "\n".join(map(str, (*self.family, queue)))
        return f"{sha1(whole.encode(), usedforsecurity=False).hexdigest()[:12]}:{self.number}"


def was_published(steps: str, name: str) -> bool:
    """Whether a steps note has a step of this name (``step.lua`` asks the same)."""
    family, _, number = name.partition(":")
    parts = PUBLISHED.findall(steps)
    return any(of == family and int(a) <= int(number) <= int(z) for of, a, z in parts)


def seed_of(properties: Mapping[str, Any], task_id: str) -> str:
    """What a message has for itself and keeps through each redelivery: kombu's delivery tag, made
    when it was published. The task id alone is none, since senders use it again; it is added for
    senders whose tags are always the same."""
    return f"{properties.get('delivery_tag')} {task_id}"


class Run:
    """One run of a job: what it may publish for its end, and what it has published."""

    def __init__(
        self, claim: Claim, task_id: str, title: str, group: str | None = None, seed: str = ""
    ) -> None:
        self.claim, self.task_id, self.title, self.group = claim, task_id, title, group
        self.seed = seed
        #: The steps note of a dead-lettered job, where this one is its notice.
        self.earlier = ""
        #: Its retry, or what replaces it, until it is known whether the run ends with that.
        self.held: list[Callable[[bool], None]] = []
        #: Task id -> the steps with this id, in the order in which Celery publishes them.
        self._steps: dict[str, list[tuple[str, int]]] = {}
        self._published: Counter[Any] = Counter()
        self._numbers: dict[str, int] = defaultdict(int)
        self._followers: dict[str, tuple[Any, Any]] = {}

    def followers(self, name: str, signatures: Any) -> Any:
        """Copy what the message names for the job's end (one of ``FOLLOWING``), with an id for each
        signature that has none: the same id in each run, where Celery would make one up. The task
        sees no such id: what its body publishes by hand would share it."""
        source, copied = self._followers.get(name, (None, None))
        if source is not signatures:
            copied = signatures
            with suppress(*UNREADABLE):  # Celery reports it where it reads the signature
                copied = self._copied(name, signatures)
            self._followers[name] = signatures, copied
        return copied

    def step(
        self,
        task_id: str,
        task: str,
        chord: str | None = None,
        *,
        of_end: bool,
        is_itself: bool = False,
    ) -> Step | None:
        """Count one message that Celery publishes for this run, and name it; None: it is no step.
        ``of_end``: it is one of the followers, else the job itself; ``chord``: the group that it
        counts in. The part of another chord is another step: that is not complete without it."""
        key = task_id if of_end else self.task_id
        self._published[key] += 1
        count = self._published[key]
        if not of_end:
            return Step(self, task_id, task, ("itself",), count, is_itself)
        known = self._steps.get(task_id, ())
        if not known:
            return None
        family, number = known[count - 1] if count <= len(known) else (task_id, count)
        return Step(self, task_id, task, (family, chord), number)

    def release(self, *, is_over: bool = False) -> None:
        """Publish what is held; ``is_over``: the run has ended with it."""
        while self.held:
            self.held[0](is_over)
            del self.held[0]

    def _copied(self, name: str, signatures: Any) -> Any:
        seed = f"{self.seed} {name}"
        if name != "chain":
            return self._with_ids(name, signatures, seed, errbacks=name == "chord")
        # Of a chain only the next link is published, from the end; and if the job fails, the body
        # of a chord that one of the later links is a part of.
        links = list(signatures)
        for at, link in enumerate(links):
            if chord := link["options"].get("chord"):
                body = self._with_ids(name, chord, f"{seed} {at}", errbacks=True)
                links[at] = {**link, "options": {**link["options"], "chord": body}}
        if links:
            links[-1] = self._with_ids(name, links[-1], f"{seed} next")
        return links

    def _with_ids(
        self, name: str, signature: Any, seed: str, *, direct: bool = True, errbacks: bool = False
    ) -> Any:
        """Copy a signature with ids. ``direct``: this run publishes it (of a chain, only the first
        link); ``errbacks``: it publishes its errbacks, too."""

        def inner(part: Any, where: Any, direct: bool = direct) -> Any:
            return self._with_ids(name, part, f"{seed} {where}", direct=direct, errbacks=errbacks)

        if isinstance(signature, (list, tuple)):
            return [inner(part, at) for at, part in enumerate(signature)]
        if not isinstance(signature, dict):
            return signature
        kind, copied = signature.get("subtask_type"), dict(signature)
        options = copied["options"] = dict(signature.get("options") or {})
        if kind != "chain":  # whose id is that of its last link
            self._give_id(name, options, seed, direct=direct and kind not in CONTAINERS)
        if kind in CONTAINERS:
            parts = copied["kwargs"] = dict(signature.get("kwargs") or {})
            for part in filter(parts.get, ("tasks", "header", "body")):
                if kind == "chain":
                    first, *others = parts[part]
                    parts[part] = [inner(first, "first"), *inner(others, "others", direct=False)]
                else:
                    parts[part] = inner(parts[part], part, direct=direct and part != "body")
        if errbacks and options.get("link_error"):
            options["link_error"] = inner(options["link_error"], "link_error", direct=True)
        return copied

    def _give_id(self, name: str, options: dict[str, Any], seed: str, *, direct: bool) -> None:
        id = options.get("task_id") or str(uuid5(NAMESPACE_OID, seed))
        options["task_id"] = id
        if direct:
            self._steps.setdefault(id, []).append((name, self._numbers[name]))
            self._numbers[name] += 1


def ids_of(signature: Any) -> frozenset[str]:
    """The ids of a signature and of all that it consists of, but for what follows it."""
    found, left = set(), [signature]
    while left:
        part = left.pop()
        if isinstance(part, (list, tuple)):
            left.extend(part)
        elif isinstance(part, dict):
            found.add((part.get("options") or {}).get("task_id"))
            kwargs = (part.get("kwargs") or {}) if part.get("subtask_type") else {}
            left.extend(kwargs.get(name) for name in ("tasks", "header", "body"))
    return frozenset(filter(None, found))


#: The job that runs here, and the step that it publishes just now.
running: ContextVar[Run | None] = ContextVar("running", default=None)
handing: ContextVar[Step | None] = ContextVar("handing", default=None)
