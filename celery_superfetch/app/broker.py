"""An installed app's connections to its broker: kombu connections with this package's transport,
and plain Redis clients.

``installation`` makes ``AMQP`` the app's class in each of its processes, and Celery then makes each
broker connection of the app by ``AMQP.Connection``. Connections of other apps stay stock. Beat's
reap task, ``DeadSet``, the inspector, commands and a worker that starts call ``client_of``.

Nothing here is stored. If the process dies, its connections are closed, and a reaper recovers the
jobs of its owner.

Foreign names:

celery app.
    examine each message that a job publishes: amqp:AMQP.send_task_message
"""

from __future__ import annotations

from typing import Any

import celery.app.amqp
import kombu.connection
from celery import Celery
from kombu.utils.collections import HashedSeq
from kombu.utils.objects import cached_property
from redis import Redis

from ..errors import UnsupportedBroker
from ..model.config import Config
from ..store.database import Database
from ..store.redis.connections import REPLY_TIMEOUT
from ..store.redis.pools import shared_client
from ..store.redis.server import warn_once
from ..store.redis.urls import legible
from ..transport.transport import KNOWN_OPTIONS, SentinelTransport, Transport, discreet
from .sender import sender

#: URL schemes that this package serves, as kombu names them.
SCHEMES = {"redis": Transport, "rediss": Transport, "sentinel": SentinelTransport}


class Connection(kombu.Connection):
    """A kombu connection that uses this package's transport for ``redis://``, ``rediss://`` and
    ``sentinel://``. The URL stays as it is: kombu gives rediss:// its TLS defaults, and Flower
    shows its broker page."""

    def get_transport_cls(self) -> Any:
        name = self.transport_cls
        cls = SCHEMES.get(name) or super().get_transport_cls()
        if not issubclass(cls, Transport):
            warn_once(
                f"celery_superfetch is installed, but the broker is {name!r}, not Redis: jobs have "
                "that broker's own guarantees and no others."
            )
        return cls

    def Pool(self, limit: int | None = None, **kwargs: Any) -> Any:
        return _Pool(self, limit, **kwargs)

    def __eqhash__(self) -> HashedSeq:
        """Return the key by which kombu keeps one pool for equal connections: a stock connection is
        not equal to one of this class."""
        return HashedSeq(Connection, super().__eqhash__())


class _PooledConnection(Connection, kombu.connection.PooledConnection):
    """One of the pool; what the app takes from there consumes as reliably as any other."""


class _Pool(kombu.connection.ConnectionPool):
    def new(self) -> _PooledConnection:
        connection = super().new()
        connection.__class__ = _PooledConnection
        return connection


class AMQP(celery.app.amqp.AMQP):
    """An installed app's ``app.amqp``: Celery takes from it the class of its connections, and the
    function that publishes tasks (``app/sender.py`` wraps that)."""

    Connection = Connection

    @cached_property
    def send_task_message(self) -> Any:
        return sender(super().send_task_message)


def config_of(app: Celery) -> Config:
    """Return the app's options; ConfigError if one is misspelt or impossible."""
    return Config.from_options(app.conf.broker_transport_options or {}, KNOWN_OPTIONS)


def database_of(app: Celery, client: Redis) -> Database:
    """Return the database of an app, with its options and its tasks' names; ConfigError as
    ``config_of``."""
    database = Database(client, config_of(app))
    database.is_registered = lambda task: task in app.tasks
    return database


@legible()
def client_of(app: Celery, timeout: float = 0.0) -> Redis:
    """Make a plain client for the database that the app's workers consume from. The caller closes
    it.

    Arguments:
        timeout: seconds to wait for the connection and for each reply; 0: as the app's options say.

    Raises:
        UnsupportedBroker: the broker is not Redis, or its URL cannot be read.
        redis.exceptions.RedisError: the server cannot be reached.
    """
    try:
        connection = app.connection_for_read()
    except KeyError as exc:  # kombu's "No such transport"
        raise UnsupportedBroker(f"broker_url is of no use: {exc.args[0]}") from exc
    except TypeError as exc:
        raise UnsupportedBroker(
            f"broker_url has options after its '?' that kombu does not know ({exc}): they belong "
            "in broker_transport_options"
        ) from exc
    with connection:
        if not issubclass(connection.get_transport_cls(), Transport):
            raise UnsupportedBroker(
                f"the app's broker ({discreet(connection)}) is not served by celery_superfetch: "
                "the module that -A names never calls celery_superfetch.install(app), or its "
                "broker_url is neither redis:// nor sentinel://"
            )
        # kombu alone tries two of a failover list's servers, and one that says nothing twice.
        servers = max(1, len(connection.alt))
        if timeout:
            limits = dict.fromkeys(("socket_timeout", "socket_connect_timeout"), timeout / servers)
            connection.transport_options.update(limits)
        connection.ensure_connection(
            max_retries=servers,
            timeout=timeout or (servers - 0.5) * REPLY_TIMEOUT,
            interval_start=0,
            interval_step=0,
            reraise_as_library_errors=False,
        )
        return shared_client(connection.channel().here())
