"""The broker's database, as one value: what everybody needs who reads or writes there."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from redis import Redis

from ..model.config import Config
from .keys import Keys
from .wire.server import check_writable, milliseconds

if TYPE_CHECKING:
    from .wire.scripts import Scripts


class Database:
    """A client, with the options of whoever uses it, and the keys and scripts of ours there.

    Arguments:
        client: a plain client (not kombu's prefixing one).
    """

    def __init__(self, client: Redis, config: Config) -> None:
        self.client = client
        self.config = config
        self.keys = Keys(config.global_keyprefix)

    @cached_property
    def scripts(self) -> Scripts:
        """Ours; who only publishes runs none."""
        from .wire.scripts import Scripts

        return Scripts(self.client, self.keys.never)

    def server_time(self) -> int:
        """The server's clock in ms: the only clock that is shared."""
        return milliseconds(self.client.time())

    def check_writable(self) -> None:
        """Raises as ``wire.server.check_writable``."""
        check_writable(self.client, self.keys.never)


class Structure:
    """One structure in a database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.client = database.client
        self.config = database.config
        self.keys = database.keys
        self.scripts = database.scripts
