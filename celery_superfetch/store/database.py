"""The broker's database as one value (client, options, key names, scripts), the locks that
processes share there, and the base of each structure class of this package. A lock expires by
itself: if its holder dies, the next process gets it then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from redis import Redis

from ..model.config import Config
from ..model.lazy import lazy_property
from ..model.records import whole
from .keys import Keys

if TYPE_CHECKING:
    from .wire.scripts import Scripts

T = TypeVar("T")

NAME_MAX_CHARS = 200  # of a task that has counters of its own


class Database:
    """A client (a plain one, not kombu's prefixing one) with the options of the app that uses
    it."""

    def __init__(self, client: Redis, config: Config) -> None:
        self.client = client
        self.config = config
        self.keys = Keys(config.global_keyprefix)
        #: Whether the app that uses it has a task of this name; without an app it has none.
        self.is_registered: Callable[[str], bool] = lambda task: False

    @lazy_property
    def scripts(self) -> Scripts:
        """The package's Lua scripts, loaded at first use: a process that only publishes needs
        none."""
        from .wire.scripts import Scripts

        return Scripts(self.client, self.keys.never)

    def counted_as(self, task: str | None) -> str:
        """Return a task's name, for counters; empty if the app does not have it. Producers name
        tasks as they like, and each name is a row that stays for a week."""
        return task if task and len(task) <= NAME_MAX_CHARS and self.is_registered(task) else ""

    def server_time(self) -> int:
        """Return the server's clock in ms: the only clock that processes share."""
        time: Any = self.client.time()
        return int(time[0]) * 1000 + int(time[1]) // 1000

    def refusals(
        self, lines: Iterable[str], queue_lists: Iterable[str]
    ) -> list[tuple[str, str, Exception]] | None:
        """Return which commands, and which queue lists, the server refuses (``wire/refusals``)."""
        from .wire.refusals import refusals

        return refusals(self.client, self.keys.never, lines, map(self.keys.queue, queue_lists))

    def take_turn(self, scope: str, seconds: float) -> bool:
        """Take the lock of a scope for so many seconds; return whether it was free."""
        ms = max(1, int(seconds * 1000))
        return bool(self.scripts.run("lock", [self.keys.lock(scope)], [ms]))

    def lasts(self, scope: str) -> float:
        """Return for how many seconds the lock of a scope has been held; 0 if it is free."""
        lock = self.keys.lock(scope)
        length, left = self.client.get(lock), self.client.pttl(lock)
        return (whole(length) - left) / 1000 if length and left > 0 else 0.0

    def end_turn(self, scope: str, after: float = 0.0) -> None:
        """Release the lock of a scope, now or after so many seconds."""
        self.client.pexpire(self.keys.lock(scope), int(after * 1000))


def chunks(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """Yield the items, so many at a time."""
    return (items[at : at + most] for at in range(0, len(items), most))


class Structure:
    """Base of the classes that each read and write one structure of the database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.client: Any = database.client  # to redis-py any reply may be one to await
        self.config = database.config
        self.keys = database.keys
        self.scripts = database.scripts

    def _at_once(self, commands: Iterable[Sequence[Any]], *, errors: bool = False) -> list[Any]:
        """Send commands in one round trip, not as a transaction; return their replies. With
        ``errors`` an error is a reply, otherwise the first one is raised. If the process dies while
        it sends, the server may have executed only the first of them."""
        with self.client.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            return list(pipe.execute(raise_on_error=not errors))
