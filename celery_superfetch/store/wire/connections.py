"""Where a database is: connections that follow its primary, and what tells two databases apart."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    ClusterDownError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool

from ...model.version import __version__

#: Arguments of ``redis.ConnectionPool`` that lead to one database.
Params = Mapping[str, Any]

#: How a Sentinel is asked where ``sentinel_kwargs`` say nothing else. It answers from memory,
#: and there are others: one that is gone must not cost seconds each time. Left to itself,
#: redis-py tries it again and again, with pauses.
ASKED_ONCE: Params = {
    "socket_timeout": 2.0,
    "socket_connect_timeout": 2.0,
    "retry": Retry(NoBackoff(), 0),
}

#: Seconds to wait for the server where the user set no ``socket_timeout``. A firewall that
#: dropped a connection would stop the consumer's loop for a quarter of an hour (the kernel's
#: retransmissions); a server that stands still for 10 s must not be taken for gone.
REPLY_TIMEOUT = 15.0

#: How those arguments of a pool's connections begin that are about the pool itself.
OF_THE_POOL = ("maint_", "orig_")

#: The name under which our connections stand in CLIENT LIST, to be told from stock kombu's; as
#: redis-py wants an upstream driver to be called.
NAME = "celery-superfetch"

#: How a reply begins that ends a blocking read because the server was made a replica.
FORCED_UNBLOCK = "UNBLOCKED force unblock"

#: A cluster has moved, or moves, our slot (``AskError`` is of MOVED, too), or cannot serve it.
SLOT_IS_AWAY = AskError, TryAgainError, ClusterDownError


def leaving_replicas(connection_class: Any) -> Any:
    """``connection_class``, but it leaves a server that was made a replica, or moves our slot.

    To redis-py, READONLY is a reply like any other, and it goes on talking to that server. As a
    connection error it makes consumers and producers connect again, and so find the primary.
    Nothing was executed, so nothing can be executed twice.
    """

    class LeavingReplicas(connection_class):
        def send_packed_command(self, *args: Any, **kwargs: Any) -> None:
            # redis-py would connect to where it was last, and ask no Sentinel.
            if self._sock is None:
                self.connect()
            super().send_packed_command(*args, **kwargs)

        def read_response(self, *args: Any, **kwargs: Any) -> Any:
            # redis-py waits for a message of its pub/sub without a limit. kombu reads when there
            # is something to be read, and half a message must not keep its loop for ever.
            if kwargs.get("timeout", ...) is None:
                del kwargs["timeout"]
            try:
                return super().read_response(*args, **kwargs)
            except SLOT_IS_AWAY as exc:
                self.disconnect()
                raise RedisConnectionError(
                    f"the cluster does not serve our slot here, or not now ({type(exc).__name__}: "
                    f"{exc}): it did nothing of what was asked"
                ) from exc
            except ResponseError as exc:
                if not isinstance(exc, ReadOnlyError) and not str(exc).startswith(FORCED_UNBLOCK):
                    raise
                self.disconnect()
                raise RedisConnectionError(
                    "the server is a read-only replica now, after a failover: it did nothing of "
                    f"what was asked ({exc}); looking for the primary"
                ) from exc

    return LeavingReplicas


def discreetly(discover_master: Callable[[str], Any], options: Params) -> Callable[[str], Any]:
    """``discover_master`` of a redis-py Sentinel; the errors of older ones show its passwords.

    Arguments:
        options: how the Sentinels are asked.
    """

    def discover(service_name: str) -> Any:
        try:
            return discover_master(service_name)
        except MasterNotFoundError as exc:
            text = str(exc)
        for name in ("password", "ssl_password"):
            text = text.replace(f"{name}={options.get(name)}", f"{name}=***")
        raise MasterNotFoundError(text)

    return discover


class Sentinels:
    """The Sentinels that know where the primary is.

    Stands where redis-py's Sentinel connections expect their pool, which they ask at each
    connect. It asks by connections of the moment: heartbeats, acks and claims connect from
    threads of their own, and redis-py's ``Sentinel`` is made for one.
    """

    #: What redis-py's connections ask of their pool beside the address.
    is_master = True
    check_connection = False

    def __init__(
        self,
        service_name: str,
        addresses: Sequence[tuple[str, int]],
        min_other_sentinels: int = 0,
        options: Params = ASKED_ONCE,
    ) -> None:
        self.service_name = service_name
        self.addresses = addresses
        self.min_other_sentinels = min_other_sentinels
        self.options = options

    def get_master_address(self) -> tuple[str, int]:
        """Host and port of the primary.

        Raises:
            redis.exceptions.ConnectionError: no Sentinel that answers knows one.
        """
        sentinel = Sentinel(
            list(self.addresses),
            min_other_sentinels=self.min_other_sentinels,
            sentinel_kwargs=self.options,
        )
        try:
            host, port = discreetly(sentinel.discover_master, self.options)(self.service_name)
        finally:
            for client in sentinel.sentinels:
                client.close()
        return str(host), int(port)


def sentinel_params(pool: SentinelConnectionPool) -> dict[str, Any]:
    """Params for connections of our own to the primary that kombu's ``pool`` leads to."""
    manager = pool.sentinel_manager
    # Since redis-py 8 a pool adds handlers of its own, which a connection outside must not call.
    given = {k: v for k, v in pool.connection_kwargs.items() if not k.startswith(OF_THE_POOL)}
    known = (client.connection_pool.connection_kwargs for client in manager.sentinels)
    return {
        **given,
        "connection_class": pool.connection_class,
        "max_connections": pool.max_connections,
        "connection_pool": Sentinels(
            pool.service_name,
            tuple((at["host"], int(at["port"])) for at in known),
            manager.min_other_sentinels,
            dict(manager.sentinel_kwargs),
        ),
    }


def place_of(params: Params) -> Hashable:
    """What tells one database from another."""
    sentinels = params.get("connection_pool")
    parts = tuple(str(params.get(part)) for part in ("host", "port", "path", "db", "username"))
    if not isinstance(sentinels, Sentinels):
        return parts
    # In whatever order they are named.
    return *parts, sentinels.service_name, frozenset(sentinels.addresses)


def without_retries(params: Params) -> dict[str, Any]:
    """A claim that redis-py repeats by itself claims twice, and nobody learns of the first."""
    kept = {k: v for k, v in params.items() if k not in ("retry", "retry_on_error")}
    return {**kept, "retry_on_timeout": False}


def patient(params: Params) -> dict[str, Any]:
    """Arguments of a connection that waits, but not for ever, where the user set no limit."""
    own = dict(params)
    own["socket_timeout"] = own.get("socket_timeout") or REPLY_TIMEOUT
    if "path" not in own:
        own["socket_connect_timeout"] = own.get("socket_connect_timeout") or REPLY_TIMEOUT
    return own


def named(params: Mapping[str, Any]) -> dict[str, Any]:
    """Connection parameters under which redis-py says who we are.

    It says so as it connects, together with its own version, and carries on where the server
    does not know the command (before Redis 7.2) or the user may not give it.
    """
    try:
        from redis import DriverInfo
    except ImportError:  # redis-py before 7.1
        return {**params, "lib_name": f"redis-py({NAME}_v{__version__})"}
    return {**params, "driver_info": DriverInfo().add_upstream_driver(NAME, __version__)}


def is_ours(client: Mapping[str, Any]) -> bool:
    """Whether a row of CLIENT LIST is a connection of this package's."""
    return f"({NAME}_v" in str(client.get("lib-name", ""))
