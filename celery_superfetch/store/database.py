"""``Database``: the client, the options, the key names and the Lua scripts of one Redis database,
and its locks. ``Structure``: the base of each class of ``store/``.

Every process of the package makes a ``Database``: workers, publishers, beat, the console. Most code
reaches Redis by a subclass of ``Structure``. A lock (``try_lock``) lets one process of many do
some work at a time. It is taken by reapers for a pass or a host check, by beat's task, by workers
at a revoke, and by the task that announces dead jobs. ``console/permissions.py`` calls
``refusals``.

A lock is a key with a TTL: if its holder dies, the next process gets it when the key has expired.
If a process dies while it sends several commands (``Structure._at_once``), the server may have
executed only the first few; the methods that use it say what that means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, TypeVar

from redis import Redis
from redis.exceptions import ResponseError

from ..model.config import Config
from ..model.lazy import lazy_property
from ..model.queue_list import ListNames
from ..model.records import whole
from .keys import Keys

if TYPE_CHECKING:
    from .redis.scripts import Scripts

T = TypeVar("T")

RAISES: Any = object()  # of ``Structure._at_once``: a key of another type is an error

NAME_MAX_CHARS = 200  # a task with a longer name has no counters of its own


class Database:
    """A client with the options of one app. The client is redis-py's. kombu's own client would add
    the key prefix a second time."""

    def __init__(self, client: Redis, config: Config) -> None:
        self.client = client
        self.config = config
        self.keys = Keys(config.global_keyprefix)
        self.list_names = ListNames(config.sep, config.priority_steps)
        #: Returns whether the app has a task of this name. ``app/broker.py`` and ``Owner`` (the
        #: part of a worker that claims jobs) set it; without an app no task is registered.
        self.is_registered: Callable[[str], bool] = lambda task: False
        self.is_for_reading = False  # ``for_reading``

    def for_reading(self) -> Database:
        """Return the same database for a process that shows what is there. A key of another type,
        which another program has written, counts as empty in it, so that one such key does not end
        a whole view; ``KeyTypes`` finds it. In any other process it is an error: a reaper or a
        rollback that took it for empty would leave jobs behind."""
        database = copy(self)
        database.is_for_reading = True
        return database

    def queue_of(self, queue_list: str) -> str:
        """Return the queue of a queue list."""
        return self.list_names.queue(queue_list)

    @lazy_property
    def scripts(self) -> Scripts:
        """The package's Lua scripts, made at the first access. A process that only publishes, and
        so makes no ``Structure``, does not import their code."""
        from .redis.scripts import Scripts

        return Scripts(self.client, self.keys.never)

    def counted_as(self, task: str | None) -> str:
        """Return the task name under which a job is counted for metrics: the task's own; empty if
        the app has no such task. A producer can send any name, and each would be a row of
        ``superfetch:stats`` that stays for a week."""
        if not task or len(task) > NAME_MAX_CHARS or not self.is_registered(task):
            return ""
        try:  # JSON can hold half a character. No command can, and the job could not be settled.
            task.encode()
        except UnicodeEncodeError:
            return ""
        return task

    def server_time(self) -> int:
        """Return the server's clock in ms: the only clock that processes share."""
        time: Any = self.client.time()
        return int(time[0]) * 1000 + int(time[1]) // 1000

    def refusals(
        self, lines: Iterable[str], queue_lists: Iterable[str]
    ) -> list[tuple[str, str, Exception]] | None:
        """Return which commands (``lines``, such as "LLEN K"), and which queue lists, the server
        refuses to this user (``redis/refusals.py``); None if the server does not say."""
        from .redis.refusals import refusals

        return refusals(self.client, self.keys.never, lines, map(self.keys.queue, queue_lists))

    def try_lock(self, scope: str, seconds: float) -> bool:
        """Take the lock of a scope (a name), for so many seconds at most; return whether it was
        free. The key's value is that time in ms, from which ``held_for_s`` computes. The lock does
        not say which process holds it. If the work lasts longer, a second process takes the lock,
        and the first one's ``unlock`` then releases the lock of the second. So work under a lock
        has to be correct without it."""
        ms = max(1, int(seconds * 1000))
        return bool(self.scripts.run("lock", [self.keys.lock(scope)], [ms]))

    def held_for_s(self, scope: str) -> float:
        """Return for how many seconds the lock of a scope has been held so far; 0 if it is free.
        Of a lock that ``unlock`` releases later, the result is too large."""
        lock = self.keys.lock(scope)
        length_ms, left_ms = self.client.get(lock), self.client.pttl(lock)
        return (whole(length_ms) - left_ms) / 1000 if length_ms and left_ms > 0 else 0.0

    def unlock(self, scope: str, after: float = 0.0) -> None:
        """Release the lock of a scope, now or ``after`` so many seconds."""
        self.client.pexpire(self.keys.lock(scope), int(after * 1000))


def is_wrong_type(error: Exception) -> bool:
    """Return whether the server refused a command since the key has another type."""
    return isinstance(error, ResponseError) and "WRONGTYPE" in str(error)


def none_if_wrong_type(reply: Any) -> Any:
    """Return a reply; None for the error of a key of another type. Any other error is raised: one
    that is temporary (BUSY) does not say that the key holds nothing."""
    if isinstance(reply, Exception):
        if not is_wrong_type(reply):
            raise reply
        return None
    return reply


def chunks(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """Yield the items in slices of ``most`` at most."""
    return (items[at : at + most] for at in range(0, len(items), most))


class Structure:
    """Base of the classes that each read and write one structure of the database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.client: Any = database.client  # redis-py's types say that any reply may be awaitable
        self.config = database.config
        self.keys = database.keys
        self.scripts = database.scripts

    def _at_once(
        self, commands: Iterable[Sequence[Any]], *, errors: bool = False, empty: Any = RAISES
    ) -> list[Any]:
        """Send commands in one round trip, not as a transaction; return their replies. With
        ``errors`` an error is a reply, otherwise the first one is raised. If the process dies while
        it sends, the server may have executed only the first few.

        Arguments:
            empty: the reply for a key of another type, in a database ``for_reading``.
        """
        is_lenient = self.database.is_for_reading and empty is not RAISES
        with self.client.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            replies = list(pipe.execute(raise_on_error=not (errors or is_lenient)))
        return [self._or_empty(reply, empty) for reply in replies] if is_lenient else replies

    def _read(
        self, command: Callable[..., Any], *args: Any, empty: Any, key: str = "", **options: Any
    ) -> Any:
        """Return the reply to a command that reads one key; ``empty`` for a key of another type, in
        a database ``for_reading``.

        Arguments:
            key: the name of the key; empty: it is the first of ``args``.
        """
        try:
            return command(*args, **options)
        except ResponseError as exc:
            if is_wrong_type(exc) and not self.database.is_for_reading:
                # The server does not name it, and a person has to find it.
                raise ResponseError(f"key {key or args[0]}: {exc}") from exc
            return self._or_empty(exc, empty)

    def _or_empty(self, reply: Any, empty: Any) -> Any:
        """Return a reply; ``empty`` for the error of a key of another type, in a database
        ``for_reading``. Any other error is raised."""
        if not isinstance(reply, Exception):
            return reply
        if self.database.is_for_reading and is_wrong_type(reply):
            return empty
        raise reply
