"""An installed app's connections to its broker: kombu connections with this package's transport,
and plain Redis clients.

``installation`` makes ``AMQP`` the app's class in each of its processes, and Celery then makes each
broker connection of the app by ``AMQP.Connection``. Connections of other apps stay stock. Beat's
reap task (which recovers the jobs of dead workers), ``DeadSet``, the inspector, commands and a
worker that starts or ends call ``client_of``; most of them, and ``app/reaper.py``, call
``database_of``. A worker that starts, the inspector, the guard and ``installation`` call
``config_of``. Each new connection, and ``installation``, call ``set_options``.

Nothing here is stored. If the process dies, its connections are closed. If it was a worker, a
reaper puts the jobs that it had claimed back on their queues.

Foreign names:

celery utils.
    set an app's options: collections:ConfigurationView._to_keys(key)
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
from ..store.redis.connections import REPLY_TIMEOUT_S
from ..store.redis.pools import shared_client
from ..store.redis.server import warn_once
from ..store.redis.urls import hiding_passwords
from ..transport.transport import KNOWN_OPTIONS, SentinelTransport, Transport, masked_url
from .sender import sender

#: URL schemes that this package serves, as kombu names them.
SCHEMES = {"redis": Transport, "rediss": Transport, "sentinel": SentinelTransport}


class Connection(kombu.Connection):
    """A kombu connection that uses this package's transport for ``redis://``, ``rediss://`` and
    ``sentinel://``. The URL keeps its scheme, by which kombu gives rediss:// its TLS defaults and
    Flower shows its broker page."""

    def get_transport_cls(self) -> Any:
        name = self.transport_cls
        cls = SCHEMES.get(name) or super().get_transport_cls()
        if not issubclass(cls, Transport):
            warn_once(
                f"celery_superfetch has no effect: the broker is {name!r}, not Redis or Valkey. "
                "Jobs have only the guarantees of that broker. Let broker_url name Redis or "
                "Valkey, or remove install()."
            )
        return cls

    def Pool(self, limit: int | None = None, **kwargs: Any) -> Any:
        return _Pool(self, limit, **kwargs)

    def __eqhash__(self) -> HashedSeq:
        """Return the key by which kombu keeps one pool for equal connections: a stock connection is
        not equal to one of this class."""
        return HashedSeq(Connection, super().__eqhash__())


class _PooledConnection(Connection, kombu.connection.PooledConnection):
    """A connection of the app's pool, which uses this package's transport as well."""


class _Pool(kombu.connection.ConnectionPool):
    def new(self) -> _PooledConnection:
        connection = super().new()  # of kombu's own class: kombu cannot be told another
        connection.__class__ = _PooledConnection
        return connection


class AMQP(celery.app.amqp.AMQP):
    """An installed app's ``app.amqp``: Celery takes from it the class of its connections, and the
    function that publishes tasks (``app/sender.py`` wraps that)."""

    @property
    def Connection(self) -> type[Connection]:
        """The class of the app's connections. Celery asks for it before it reads
        ``broker_transport_options`` for a new connection. A module may have replaced that setting
        after the app was configured: a producer without the options of ``install()`` would send its
        jobs to keys that no worker reads."""
        set_options(self.app)
        return Connection

    @cached_property
    def send_task_message(self) -> Any:
        return sender(super().send_task_message)


def set_options(app: Celery) -> None:
    """Merge the options of ``install()`` into ``broker_transport_options``, unless they are there.
    A copy of an app that is being unpickled has none yet: its settings have them."""
    installed = getattr(app, "_superfetch", None)
    if installed is None:
        return
    options = app.conf.broker_transport_options or {}
    merged = {**options, **installed, "app_name": app.main or ""}
    if merged != options:
        set_first(app.conf, "broker_transport_options", merged)


def set_first(conf: Any, name: str, value: Any) -> None:
    """Set a setting where it is found first: with a namespace, Celery before 5.7 reads the
    prefixed name before the plain one, whichever map has it."""
    conf.maps[0].update(dict.fromkeys((conf._to_keys(name)[0], name), value))


def config_of(app: Celery) -> Config:
    """Return the app's options; ConfigError if one is misspelt or impossible."""
    return Config.from_options(app.conf.broker_transport_options or {}, KNOWN_OPTIONS)


def database_of(app: Celery, client: Redis) -> Database:
    """Return the database of an app, with its options and its tasks' names; ConfigError as
    ``config_of``."""
    database = Database(client, config_of(app))
    database.is_registered = lambda task: task in app.tasks
    return database


@hiding_passwords()
def client_of(app: Celery, timeout: float = 0.0) -> Redis:
    """Make a plain client for the database that the app's workers consume from. Its connections are
    of a pool that the process shares; the caller closes the client, which returns them.

    Arguments:
        timeout: seconds to wait for the connection and for each reply; 0: as the app's options say.

    Raises:
        UnsupportedBroker: the broker is not Redis, or its URL cannot be read.
        redis.exceptions.RedisError: the server cannot be reached.
    """
    try:
        connection = app.connection_for_read()
    except KeyError as exc:  # kombu's "No such transport"
        raise UnsupportedBroker(f"broker_url cannot be used: {exc.args[0]}") from exc
    except TypeError as exc:
        raise UnsupportedBroker(
            f"broker_url has options after its '?' that kombu does not know ({exc}): move them "
            "to broker_transport_options"
        ) from exc
    with connection:
        if not issubclass(connection.get_transport_cls(), Transport):
            raise UnsupportedBroker(
                f"the app's broker ({masked_url(connection)}) does not use celery_superfetch: the "
                "module given with -A never calls celery_superfetch.install(app), or broker_url "
                "does not begin with redis://, rediss:// or sentinel://"
            )
        # By default kombu tries only two servers of a failover list, and a server that does not
        # answer twice. Here each server is tried once, and the time ends while the last one is.
        servers = max(1, len(connection.alt))
        if timeout:
            limits = dict.fromkeys(("socket_timeout", "socket_connect_timeout"), timeout / servers)
            connection.transport_options.update(limits)
        connection.ensure_connection(
            max_retries=servers,
            timeout=timeout or (servers - 0.5) * REPLY_TIMEOUT_S,
            interval_start=0,
            interval_step=0,
            reraise_as_library_errors=False,
        )
        return shared_client(connection.channel().server_params())
