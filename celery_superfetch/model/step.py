"""The steps of a job: the messages that Celery publishes because the job ends (callbacks, errbacks,
the next link of a chain, the body of a chord, a retry, a replacement).

Each step has a name that is the same in each run of the job: a family (which place in the message
names the signature) and a number. The *steps note* in the owner's private list has the names that
were published. If the process dies between two steps, the note goes with the job to its next claim,
and the next run publishes only the rest (``step.lua``).

``app.steps`` makes a ``Run`` for each run of a job, ``app.task_hooks`` reports to it how far that
has come, ``app.sender`` asks it whether a message is a step, and ``transport.steps`` publishes it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from enum import Enum
from hashlib import sha1
from typing import Any, NamedTuple
from uuid import NAMESPACE_OID, uuid5

from .job import UNREADABLE

#: Stands in a steps note once the job has ended with its own retry, or with what replaces it: a run
#: that is recovered after that has nothing left to do.
ITSELF = "!"

#: One part of a steps note: a family of steps, and the first and the last number of it that was
#: published. A family is published in the order of its numbers: 20,000 steps are one part.
PUBLISHED = re.compile(r"(\w+):(\d+)-(\d+);")

#: The attributes of a message that name the signatures that follow its job.
FOLLOWING = ("callbacks", "errbacks", "chord", "chain")

#: Signatures that are not messages themselves: each of their parts is one.
CONTAINERS = frozenset({"group", "chain", "chord"})


class Fenced(BaseException):
    """The end of a run that may publish nothing: the job belongs to another owner by now, or an
    earlier run has ended it. No ``Exception``: Celery would store that as the job's failure."""


class Claim(NamedTuple):
    """The claim of a job, for the process that runs it."""

    place: str  # of the database
    private: str  # the key of the private list that it is in
    id: str  # empty: the job was acked before it ran, and has no steps
    token: int
    steps: str = ""  # the steps note that earlier runs have left
    since: float = 0.0  # first claim of the message (s since the epoch; 0: this one, or not known)

    @property
    def is_over(self) -> bool:
        """True if an earlier run has ended with its own retry, or with what replaces the job."""
        return ITSELF in self.steps


class Step(NamedTuple):
    """A step that is being published."""

    run: Run
    task_id: str
    task: str  # its name
    family: tuple[Any, ...]
    number: int
    is_itself: bool = False  # the run may end with it: its retry, or what replaces the job

    def name(self, queue: str = "") -> str:
        """Return its name in the steps note; ``queue`` only where the message goes to several
        queues, each of which gets a step of its own."""
        whole = "\n".join(map(str, (*self.family, queue)))
        return f"{sha1(whole.encode(), usedforsecurity=False).hexdigest()[:12]}:{self.number}"


def was_published(steps: str, name: str) -> bool:
    """Return whether a steps note has a step of this name; ``step.lua`` does the same."""
    family, _, number = name.partition(":")
    parts = PUBLISHED.findall(steps)
    return any(of == family and int(a) <= int(number) <= int(z) for of, a, z in parts)


def seed_of(properties: Mapping[str, Any], task_id: str) -> str:
    """Return what tells a message from others, in each of its deliveries: kombu's delivery tag,
    made when it was published, and the task id. Neither is enough: senders use a task id again, and
    some always write the same tag."""
    return f"{properties.get('delivery_tag')} {task_id}"


class Phase(Enum):
    """The progress of a run."""

    BEFORE = "before"  # the task's body
    BODY = "body"
    END = "end"  # the body has returned or raised


class Run:
    """One run of a job: the steps that it may publish, and how many it has published.

    It lives in the process that runs the job; only the steps note outlives that.

    Arguments:
        retries: the number of the retry that this run is; 0 for a first run.
    """

    def __init__(
        self,
        claim: Claim,
        task_id: str,
        title: str,
        group: str | None = None,
        seed: str = "",
        retries: int = 0,
    ) -> None:
        self.claim, self.task_id, self.title, self.group = claim, task_id, title, group
        self.seed, self.retries = seed, retries
        self.phase = Phase.BEFORE
        #: Celery, or this package, publishes what follows a job; if not, user code publishes.
        self.publishes_followers = False
        #: What the job's message says, as Celery reads it while what follows the job is published.
        self._published_message: dict[str, Any] = {}
        #: Celery counts the job in its chord, and may publish the body of that.
        self.completes_chord = False
        #: Task ids of what replaces the job, while replace() publishes that.
        self.replaced_by: frozenset[str] = frozenset()
        #: If this job is a notice: the steps note of the dead-lettered job, whose steps it sends.
        self.earlier = ""
        #: Calls that publish the retry, or the replacement, until it is known whether the run ends
        #: with that (the argument says it).
        self.held: list[Callable[[bool], None]] = []
        #: Task id -> (attribute of the message, number in it) of each step with this id, in the
        #: order in which Celery publishes them.
        self._steps: dict[str, list[tuple[str, int]]] = {}
        #: Task id -> number of messages counted by ``step``.
        self._published: dict[str, int] = defaultdict(int)
        self._numbers: dict[str, int] = defaultdict(int)  # attribute -> next number
        #: Attribute -> its signatures as they were copied, and the copy.
        self._followers: dict[str, tuple[Any, Any]] = {}

    @contextmanager
    def publishing_followers(self, message: dict[str, Any]) -> Iterator[None]:
        """Publish what follows the job in this block, as between ``begin_publishing`` and
        ``end_publishing``."""
        self.begin_publishing(message)
        try:
            yield
        finally:
            self.end_publishing()

    def begin_publishing(self, message: dict[str, Any]) -> None:
        """Mark that Celery, or this package, publishes what follows the job: until
        ``end_publishing``, a message with the id of a follower is a step.

        Arguments:
            message: what the job's message says, as Celery reads it meanwhile. Its followers have
                ids until ``end_publishing``.
        """
        for name in FOLLOWING:
            if message.get(name):
                message[name] = self.followers(name, message[name])
        self._published_message = message
        self.publishes_followers = True

    def end_publishing(self) -> None:
        """End what ``begin_publishing`` has begun; do nothing if nothing is being published."""
        if not self.publishes_followers:
            return
        message, self._published_message = self._published_message, {}
        self.publishes_followers = False
        self.hide_ids(message)

    def hide_ids(self, message: dict[str, Any]) -> None:
        """Put the followers as the message names them in place of the copies with ids: if user code
        published one of these by hand, it would have the id of a step."""
        for name, (signatures, copied) in self._followers.items():
            if message.get(name) is copied:
                message[name] = signatures

    def followers(self, name: str, signatures: Any) -> Any:
        """Copy what the message names for the job's end, with an id for each signature that has
        none: the same id in each run, where Celery would make one up.

        Arguments:
            name: the attribute of the message, one of ``FOLLOWING``.
            signatures: its value.
        """
        source, copied = self._followers.get(name, (None, None))
        if signatures is not source and signatures is not copied:
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
        """Count one message that Celery publishes for this run, and return the step that it is.

        Arguments:
            task_id, task: of the message.
            chord: the group whose chord the message is a part of. The same task as a part of
                another chord is another step, without which that chord would never be complete.
            of_end: it is one of the followers; else it is the job itself, by retry or replacement.
            is_itself: the run may end with it.

        Returns:
            None if the message is no step: no follower has its id.
        """
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
        """Publish what is held. What cannot be published raises and stays held, for another try.
        ``is_over``: the run has ended with it."""
        while self.held:
            self.held[0](is_over)
            del self.held[0]

    def _copied(self, name: str, signatures: Any) -> Any:
        """Copy one attribute with ids, and count those of its signatures that are steps."""
        seed = f"{self.seed} {name}"
        if name != "chain":
            return self._with_ids(name, signatures, seed, errbacks=name == "chord")
        # Of a chain this run publishes the next link alone, the last of the list; and if the job
        # fails, the errbacks of the chord that a later link is a part of.
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
        """Copy a signature with ids, and so what it consists of.

        Arguments:
            name: the attribute that it is in.
            seed: of its id; it says the place in the message.
            direct: this run publishes it itself; of a chain only the first link.
            errbacks: this run may publish its errbacks, too.
        """

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
        """Add an id to a signature's options, if they have none; ``direct``: count it as a step."""
        id = options.get("task_id") or str(uuid5(NAMESPACE_OID, seed))
        options["task_id"] = id
        if direct:
            self._steps.setdefault(id, []).append((name, self._numbers[name]))
            self._numbers[name] += 1


def ids_of(signature: Any) -> frozenset[str]:
    """Return the task ids of a signature and of its parts, without those of its callbacks."""
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


#: The run of a job that this thread or greenlet is in; None also for a job without a claim.
running: ContextVar[Run | None] = ContextVar("running", default=None)
#: The step that this thread or greenlet is publishing; the transport reads it.
handing: ContextVar[Step | None] = ContextVar("handing", default=None)
