"""Where a database is: connections that follow its primary, and what tells two databases apart."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from redis import Connection
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MasterDownError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool

from ...errors import UnsupportedBroker
from ...model.version import __version__
from .slots import NO_TAG, Slot, orphaned

Params = Mapping[str, Any]  # arguments of ``redis.ConnectionPool`` that lead to one database
#: How a Sentinel is asked: there are others, and redis-py tries one that is gone again and again.
ASKED_ONCE: Params = {
    "socket_timeout": 2.0,
    "socket_connect_timeout": 2.0,
    "retry": Retry(NoBackoff(), 0),
}

#: Seconds to wait for the server where the user set no ``socket_timeout``. Behind a firewall that
#: drops connections the kernel waits for a quarter of an hour; servers may stand still for 10 s.
REPLY_TIMEOUT = 15.0
TRIES = 3  # times that what a node did not serve is sent again, each once its slot is served
#: What Redis and Valkey say of SELECT.
NO_SUCH_DATABASE = ("SELECT is not allowed in cluster mode", "DB index is out of range")
NAME = "celery-superfetch"  # of our connections in CLIENT LIST, to be told from stock kombu's


class NotServed(RedisConnectionError):
    """A cluster's node has our slot no more, or not now; it did nothing of what was asked."""


def following(connection_class: Any) -> Any:
    """``connection_class``, but it finds the node that has the primary's part at each connect, and
    leaves one that has it no more: READONLY, MASTERDOWN, MOVED and their like are connection
    errors. Nothing was executed that could be twice. With a ``slot`` it goes where a cluster serves
    that."""

    class Following(connection_class):
        def __init__(self, *args: Any, slot: Slot | None = None, **kwargs: Any) -> None:
            if slot is not None:
                kwargs["redis_connect_func"] = slot.greet
            super().__init__(*args, **kwargs)
            self.slot = slot

        def connect(self) -> None:
            if self.slot is None or self._sock is not None:
                super().connect()
            else:
                self.slot.reach(self, super().connect)

        def send_packed_command(self, *args: Any, **kwargs: Any) -> None:
            # redis-py would connect to where it was last, and ask no Sentinel.
            if self._sock is None:
                self.connect()
            super().send_packed_command(*args, **kwargs)

        def reply(self) -> Any:
            return super().read_response()

        def read_response(self, *args: Any, **kwargs: Any) -> Any:
            # redis-py waits for a message of pub/sub without a limit: half of one would keep
            # kombu's loop for ever.
            if kwargs.get("timeout", ...) is None:
                del kwargs["timeout"]
            try:
                return super().read_response(*args, **kwargs)
            except MasterDownError as exc:  # to redis-py a ClusterDownError, where there is none
                self.disconnect()
                raise orphaned(exc) from exc
            except (AskError, TryAgainError, ClusterDownError) as exc:  # AskError is of MOVED, too
                self.disconnect()
                if self.slot is None:
                    raise UnsupportedBroker(f"{NO_TAG} ({exc})") from exc
                raise NotServed(
                    f"the cluster does not serve our slot here, or not now ({type(exc).__name__}: "
                    f"{exc}): it did nothing of what was asked"
                ) from exc
            except ResponseError as exc:
                if str(exc).startswith(NO_SUCH_DATABASE):
                    raise UnsupportedBroker(
                        f"the broker has no database {self.db} ({exc}). A cluster has database 0 "
                        "alone: let broker_url end in /0. Several apps share it by their prefixes"
                    ) from exc
                # The other ends a blocking read because the server was made a replica.
                unblocked = str(exc).startswith("UNBLOCKED force unblock")
                if not (unblocked or isinstance(exc, ReadOnlyError)):
                    raise
                self.disconnect()
                raise RedisConnectionError(
                    "the server is a read-only replica now, after a failover: it did nothing of "
                    f"what was asked ({exc}); looking for the primary"
                ) from exc

    return Following


def leading_home(params: Params, slot: Slot | None) -> dict[str, Any]:
    """``params`` of connections that follow the primary, or whoever serves ``slot``."""
    found = {**params, "connection_class": following(params.get("connection_class", Connection))}
    if slot is not None:  # whoever keeps ``retry`` asks once, and loses nothing by asking again
        found.update(slot=slot, retry=Retry(NoBackoff(), TRIES, supported_errors=(NotServed,)))
    return found


def discreetly(discover_master: Callable[[str], Any], options: Params) -> Callable[[str], Any]:
    """A redis-py Sentinel's ``discover_master``; older ones show passwords in their errors."""

    def discover(service_name: str) -> Any:
        try:
            return discover_master(service_name)
        except MasterNotFoundError as exc:
            text = str(exc)
        for name in ("password", "ssl_password"):
            text = text.replace(f"{name}={options.get(name)}", f"{name}=***")
        raise MasterNotFoundError(text)

    return discover


class Sentinels(NamedTuple):
    """Stands for the pool of Sentinel connections, which these ask for the primary at each connect:
    by connections of the moment, since redis-py's ``Sentinel`` is made for one thread."""

    service_name: str
    addresses: Sequence[tuple[str, int]]
    min_other_sentinels: int = 0
    options: Params = ASKED_ONCE
    # What redis-py's connections ask of their pool beside the address.
    is_master: bool = True
    check_connection: bool = False

    def get_master_address(self) -> tuple[str, int]:
        """Host and port of the primary; ConnectionError: no Sentinel that answers knows one."""
        sentinel = Sentinel(
            list(self.addresses),
            min_other_sentinels=self.min_other_sentinels,
            sentinel_kwargs=self.options,
        )
        try:
            return discreetly(sentinel.discover_master, self.options)(self.service_name)
        finally:
            for client in sentinel.sentinels:
                client.close()


def sentinel_params(pool: SentinelConnectionPool) -> dict[str, Any]:
    """Params for connections of our own to the primary that kombu's ``pool`` leads to."""
    manager = pool.sentinel_manager
    # Since redis-py 8 a pool adds handlers of its own, which a connection outside must not call.
    pools = "maint_", "orig_"
    given = {k: v for k, v in pool.connection_kwargs.items() if not k.startswith(pools)}
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
    sentinels, slot = params.get("connection_pool"), params.get("slot")
    if slot is not None and slot.clustered:  # whichever node was named
        return slot.key, slot.seeds, str(params.get("username"))
    parts = tuple(str(params.get(part)) for part in ("host", "port", "path", "db", "username"))
    if not isinstance(sentinels, Sentinels):
        return parts
    return *parts, sentinels.service_name, frozenset(sentinels.addresses)  # in any order


def without_retries(params: Params) -> dict[str, Any]:
    """A claim that redis-py repeats by itself claims twice, and nobody learns of the first."""
    kept = {k: v for k, v in params.items() if k not in ("retry", "retry_on_error")}
    return {**kept, "retry_on_timeout": False}


def ours(params: Params) -> dict[str, Any]:
    """Arguments of a connection that waits, but not for ever, where the user set no limit, and by
    which redis-py says who we are, to a server that knows the command."""
    names = ["socket_timeout"] if "path" in params else ["socket_timeout", "socket_connect_timeout"]
    own = {**params, **{name: params.get(name) or REPLY_TIMEOUT for name in names}}
    try:
        from redis import DriverInfo
    except ImportError:  # redis-py before 7.1
        return {**own, "lib_name": f"redis-py({NAME}_v{__version__})"}
    return {**own, "driver_info": DriverInfo().add_upstream_driver(NAME, __version__)}


def is_ours(client: Mapping[str, Any]) -> bool:
    return f"({NAME}_v" in str(client.get("lib-name", ""))
