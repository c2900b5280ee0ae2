"""The steps of a job: the messages that Celery publishes because the job ends (callbacks, errbacks,
the next link of a chain, the body of a chord, a retry, a replacement).

Each step has a name that is the same in each run of the job: a family (the place in the job's
message where its signature stands, such as the callbacks) and a number. A worker that has claimed a
job has it in a *private list* on the server; the *steps note* is a field beside the job there, with
the names of the steps that were published. ``step.lua`` writes it together with each step.

If the process dies between two steps, its ``Run`` is lost, and with it a retry that it held. A
reaper puts the job back on its queue, and the note into the job's history; the next claim brings it
along, and the next run publishes only the other steps, and makes the retry again.

``app.steps`` makes a ``Run`` for each run of a job, ``app.task_hooks`` reports to it how far the
run has come, and gives it the ids of a replacement (``ids_of``). ``app.sender`` asks the ``Run``
whether a message is a step, and ``transport.step_publishing`` publishes the step.
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
ENDED_BY_SUCCESSOR = "!"

#: One part of a steps note: the digest of a family of steps, and the first and the last of its
#: numbers that were published. A family is published in the order of its numbers, so 20,000 steps
#: are one part.
PUBLISHED = re.compile(r"(\w+):(\d+)-(\d+);")

#: The attributes of a message with the *followers* of its job: the signatures of its steps, other
#: than a retry or a replacement, which no message names beforehand.
FOLLOWING = ("callbacks", "errbacks", "chord", "chain")

#: Signatures that are not messages themselves: each of their parts is one.
CONTAINERS = frozenset({"group", "chain", "chord"})


class Fenced(BaseException):
    """The end of a run that may publish nothing: the job belongs to another owner by now, or an
    earlier run has ended it. No ``Exception``: Celery would store that as the job's failure."""


class Claim(NamedTuple):
    """The record on the server that a worker holds a job, as the process that runs it needs it."""

    database: str  # its name, so that a message to another one is recognized
    private: str  # the key of the private list that the job is in
    id: str  # empty: the job was acked before it ran, and has no steps
    token: int  # the fencing token: greater with each claim of the job
    steps: str = ""  # the steps note that earlier runs have left
    since: float = 0.0  # first claim of the message (s since the epoch; 0: this one, or not known)

    @property
    def is_over(self) -> bool:
        """True if the job is over: an earlier run has ended with its retry, or with what replaces
        the job."""
        return ENDED_BY_SUCCESSOR in self.steps


class Step(NamedTuple):
    """A step that is being published."""

    run: Run
    task_id: str
    task: str  # the name of the task that it sends
    family: tuple[Any, ...]  # its digest stands in the steps note
    number: int
    is_successor: bool = False  # the run may end with it: its retry, or what replaces the job

    def name(self, queue: str = "") -> str:
        """Return its name in the steps note; ``queue`` only where the message goes to several
        queues, each of which gets a step of its own."""
        return step_name(self.family, self.number, queue)


def step_name(family: tuple[Any, ...], number: int, queue: str = "") -> str:
    """Return the name of a step in the steps note; the arguments are those of ``Step``."""
    whole = "\n".join(map(str, (*family, queue)))
    return f"{sha1(whole.encode(), usedforsecurity=False).hexdigest()[:12]}:{number}"


def was_published(steps: str, name: str) -> bool:
    """Return whether a steps note has a step of this name; ``step.lua`` does the same."""
    family, _, number = name.partition(":")
    parts = PUBLISHED.findall(steps)
    return any(of == family and int(a) <= int(number) <= int(z) for of, a, z in parts)


def seed_of(properties: Mapping[str, Any], task_id: str) -> str:
    """Return the text from which the ids of a job's followers are made: the same in each delivery
    of the message, and another for each message. It is kombu's delivery tag, made when the message
    was published, and the task id. Neither is enough: senders use a task id again, and some always
    write the same tag."""
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
        #: True while Celery, or this package, publishes the followers of the job. Otherwise it is
        #: user code that publishes.
        self.publishes_followers = False
        #: The job's message, as Celery reads it while the followers of the job are published.
        self._published_message: dict[str, Any] = {}
        #: Seconds for which a message that the server does not take is tried again, before the job
        #: is requeued. Not 0 while Celery counts the job in its chord, and may publish the body.
        self.patience_s = 0.0
        #: Task ids of what replaces the job, while replace() publishes that.
        self.replaced_by: frozenset[str] = frozenset()
        #: If this job is a notice (it announces a dead-lettered job and publishes its followers):
        #: the steps note of the dead-lettered job.
        self.earlier = ""
        #: It does not wait for a server that refuses a write: a notice, which is tried later
        #: instead. If it waited, notices could occupy all slots of all workers.
        self.is_impatient = False
        #: Calls that publish the retry, or the replacement. They are held until it is known whether
        #: the run ends with it, which is their argument.
        self.held: list[Callable[[bool], None]] = []
        #: Task id -> (attribute of the message, number in it) of each follower with this id that
        #: the run publishes itself, in the order in which Celery publishes them.
        self._steps: dict[str, list[tuple[str, int]]] = {}
        #: Task id -> number of messages with this id that ``step`` has counted, steps or not.
        self._published: dict[str, int] = defaultdict(int)
        self._numbers: dict[str, int] = defaultdict(int)  # attribute -> next number for ``_steps``
        #: Attribute -> its signatures as they were in the message, and the copy with ids.
        self._followers: dict[str, tuple[Any, Any]] = {}

    @contextmanager
    def publishing_followers(self, message: dict[str, Any]) -> Iterator[None]:
        """Mark that the followers of the job are published in this block, as between
        ``begin_publishing`` and ``end_publishing``."""
        self.begin_publishing(message)
        try:
            yield
        finally:
            self.end_publishing()

    def begin_publishing(self, message: dict[str, Any]) -> None:
        """Mark that Celery, or this package, publishes what follows the job: until
        ``end_publishing``, a message with the id of a follower is a step.

        Arguments:
            message: the job's message, as Celery reads it meanwhile. It is changed in place: its
                followers have ids until ``end_publishing``.
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
        """Restore the followers as the message named them, in place of the copies with ids: if user
        code published a copy by hand, that message would have the id of a step."""
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
            with suppress(*UNREADABLE):  # Celery reports a broken signature when it reads it
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
        is_successor: bool = False,
    ) -> Step | None:
        """Count one message that Celery publishes for this run, and return the step that it is.

        Arguments:
            task_id, task: of the message.
            chord: the id of the group whose chord the message is a part of. The same task in
                another chord is another step: if it were taken for the first one and not sent, that
                chord would never be complete.
            of_end: it may be a follower; if not, it is the job's retry or replacement.
            is_successor: as in ``Step``.

        Returns:
            None if the message is no step: no follower has its id.
        """
        key = task_id if of_end else self.task_id
        self._published[key] += 1
        count = self._published[key]
        if not of_end:
            return Step(self, task_id, task, ("itself",), count, is_successor)
        known = self._steps.get(task_id, ())
        if not known:
            return None
        # If Celery sends more messages with this id than followers have it, they are a family of
        # their own.
        family, number = known[count - 1] if count <= len(known) else (task_id, count)
        return Step(self, task_id, task, (family, chord), number)

    def release(self, *, is_over: bool = False) -> None:
        """Publish the retry, or the replacement, that is held. If that raises, it stays held, for
        another try. ``is_over``: the run has ended with it."""
        while self.held:
            self.held[0](is_over)
            del self.held[0]

    def _copied(self, name: str, signatures: Any) -> Any:
        """Copy one attribute with ids, and number those of its signatures that are steps."""
        seed = f"{self.seed} {name}"
        if name != "chain":
            return self._with_ids(name, signatures, seed, errbacks=name == "chord")
        # Of a chain this run publishes only the next link, which is the last of the list; and if
        # the job fails, the errbacks of the chords that later links are parts of.
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
        """Copy a signature, and all signatures within it, with ids.

        Arguments:
            name: the attribute of the message that it is in.
            seed: its id is made from it: the run's seed, and the signature's place in the message.
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
        if kind != "chain":  # a chain has the id of its last link
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
