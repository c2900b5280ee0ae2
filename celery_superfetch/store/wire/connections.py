"""Where a database is: connections that follow its primary, and what tells two databases apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from time import monotonic, sleep
from typing import Any, NamedTuple

from redis import Connection, cluster
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    InvalidResponse,
    MasterDownError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeout
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool

from ...errors import UnsupportedBroker
from ...model.version import __version__
from .slots import NO_TAG, PAUSE, Slot, orphaned, patience_of, reply_to
from .tls import WrongScheme, note_answer, open_socket, refuse_tls_server

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
#: Id of the task whose message is sent just now. Sent again after a timeout, it would run twice.
publishing: ContextVar[str | None] = ContextVar("publishing", default=None)
TRIES = 3  # times that what a node did not serve is sent again, each once its slot is served
#: What Redis and Valkey say of SELECT.
NO_SUCH_DATABASE = ("SELECT is not allowed in cluster mode", "DB index is out of range")
#: By which alone redis-py before 6 tells MOVED, ASK and their like apart.
CLUSTER_PARSER = getattr(cluster, "ClusterParser", None)
NAME = "celery-superfetch"  # of our connections in CLIENT LIST, to be told from stock kombu's


class Demoted(RedisConnectionError):
    """The server that was reached is a read-only replica of ``primary``; it may have lost that."""

    def __init__(self, host: str, port: str, *, is_linked: bool) -> None:
        self.primary = host, int(port)
        lost = "" if is_linked else " (a replica that has lost its primary)"
        super().__init__(
            f"the broker is a read-only replica of {host}:{port}{lost}: no job can be claimed from "
            "it or sent to it. Nothing was lost; it is asked again until a failover is over. If "
            "there is none, point broker_url at the primary"
        )


class NotServed(RedisConnectionError):
    """Another is to be asked, who can be found: a cluster's node has our slot no more, or not now,
    or a primary has handed over. It did nothing of what was asked."""


def greet(connection: Any) -> None:
    """Refuse, as it is reached, who does not have the primary's part: a kombu consumer connects
    again with a pause, until a failover is over."""
    connection.run_id = ""
    connection.on_connect()
    if connection.slot is not None:
        connection.slot.greet(connection)
    try:
        reply = reply_to(connection, "INFO", "replication")
    except ResponseError:  # it is forbidden, and nobody knows which server this is
        return note_answer(connection)
    note_answer(connection)
    reply = reply.decode() if isinstance(reply, bytes) else reply
    fields = dict(re.findall(r"^(\w+):(\S*)", reply, re.MULTILINE))
    if fields.get("role") == "slave" and fields.get("slave_read_only") != "0":
        is_linked = fields.get("master_link_status") != "down"
        raise Demoted(fields["master_host"], fields["master_port"], is_linked=is_linked)
    if connection.home is not None:
        connection.home.greet(connection)


@contextmanager
def closed_meanwhile() -> Iterator[None]:
    """Turn what redis-py raises for a connection that another thread or greenlet closed while this
    one used it into a lost connection. Otherwise the caller takes it for an error of its own: a job
    whose retry was being sent stayed in flight until its worker ended."""
    try:
        yield
    except (AttributeError, ValueError) as exc:  # its socket, or the file of its replies, is gone
        raise RedisConnectionError(f"The connection was closed meanwhile ({exc}).") from exc


def following(connection_class: Any) -> Any:
    """``connection_class``, but it finds the node that has the primary's part at each connect, and
    leaves one that has it no more: READONLY, MASTERDOWN, MOVED and their like are connection
    errors. Nothing was executed that could be twice. With a ``slot`` it goes where a cluster serves
    that; with a ``home`` it stays at the server of this process's heart."""

    class Following(connection_class):
        follows = connection_class
        run_id = ""  # which run of the server is at the other end, where somebody minds

        def __init__(
            self, *args: Any, slot: Slot | None = None, home: Any = None, **kwargs: Any
        ) -> None:
            if CLUSTER_PARSER is not None:
                kwargs["parser_class"] = CLUSTER_PARSER
            super().__init__(*args, redis_connect_func=greet, **kwargs)
            self.slot, self.home = slot, home

        @property
        def replaceable(self) -> bool:
            """Whether somebody names another in the place of a primary: Sentinels, or a cluster."""
            return hasattr(self, "connection_pool") or bool(self.slot and self.slot.clustered)

        def _connect(self) -> Any:
            return open_socket(self, super()._connect)

        def connect(self) -> None:
            """For PATIENCE seconds or its own limit, where another may come in a primary's place;
            nothing was done yet of what is to be asked."""
            deadline = monotonic() + patience_of(self)
            while self._sock is None:
                try:
                    if self.slot is None:
                        return super().connect()
                    return self.slot.reach(self, super().connect)
                except (AuthenticationError, AuthorizationError, WrongScheme):
                    raise
                except InvalidResponse as exc:
                    refuse_tls_server(self, exc)
                    raise
                except (RedisConnectionError, RedisTimeout) as exc:
                    if not isinstance(exc, RedisTimeout):
                        refuse_tls_server(self, exc)
                    if not self.replaceable or monotonic() >= deadline:
                        raise
                    # A plain FAILOVER tells no Sentinel: they name the old primary for long.
                    if isinstance(exc, Demoted):
                        with suppress(RedisConnectionError, RedisTimeout):
                            return self.connect_to(exc.primary)
                sleep(PAUSE)

        def send_packed_command(self, command: Any, check_health: bool = True) -> None:
            # redis-py would connect to where it was last, and ask no Sentinel.
            if self._sock is None:
                self.connect()
            with closed_meanwhile():
                super().send_packed_command(command, check_health=check_health)
            # As stock waits, if the user set no limit. A greeting, or a ping before it, has ours.
            ours = self.socket_timeout is REPLY_TIMEOUT and not self.replaceable
            if check_health and ours and publishing.get():
                self._sock.settimeout(None)

        def reply(self) -> Any:
            return super().read_response()

        def read_response(self, *args: Any, **kwargs: Any) -> Any:
            # redis-py waits for a message of pub/sub without a limit: half of one would keep
            # kombu's loop for ever.
            if kwargs.get("timeout", ...) is None:
                del kwargs["timeout"]
            try:
                with closed_meanwhile():
                    reply = super().read_response(*args, **kwargs)
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
                        f"the server has no database {self.db} ({exc}): let broker_url end in /0. "
                        "A cluster, and some services, have database 0 only; several apps share it "
                        "by their prefixes (global_keyprefix)"
                    ) from exc
                # The other ends a blocking read because the server was made a replica.
                unblocked = str(exc).startswith("UNBLOCKED force unblock")
                if not (unblocked or isinstance(exc, ReadOnlyError)):
                    raise
                self.disconnect()
                error = NotServed if self.replaceable else RedisConnectionError
                raise error(
                    "the server is a read-only replica now, after a failover: it did nothing of "
                    f"what was asked ({exc}); looking for the primary"
                ) from exc
            finally:
                if self._sock is not None and self._sock.gettimeout() is None:  # it was a task's
                    self._sock.settimeout(self.socket_timeout)
            if self.home is not None:
                self.home.refuse_stranger(self)
            return reply

    return Following


def leading_home(params: Params, slot: Slot | None) -> dict[str, Any]:
    """``params`` of connections that follow the primary, or whoever serves ``slot``."""
    kwargs = {**params, "connection_class": following(params.get("connection_class", Connection))}
    if slot is not None:  # whoever keeps ``retry`` asks once, and loses nothing by asking again
        kwargs.update(slot=slot, retry=Retry(NoBackoff(), TRIES, supported_errors=(NotServed,)))
    return kwargs


def discreetly(discover_master: Callable[[str], Any], options: Params) -> Callable[[str], Any]:
    """A redis-py Sentinel's ``discover_master``, whose errors tell all of each Sentinel's client;
    older ones its passwords, too."""

    def discover(service_name: str) -> Any:
        try:
            return discover_master(service_name)
        except MasterNotFoundError as exc:
            text = re.sub(r"<redis.*?host=([^,)]*),port=(\d+).*?>\)>\)>", r"\1:\2", str(exc))
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
    places = (client.connection_pool.connection_kwargs for client in manager.sentinels)
    return {
        **given,
        "connection_class": pool.connection_class,
        "max_connections": pool.max_connections,
        "connection_pool": Sentinels(
            pool.service_name,
            tuple((at["host"], int(at["port"])) for at in places),
            manager.min_other_sentinels,
            dict(manager.sentinel_kwargs),
        ),
    }


def place_of(params: Params) -> tuple[Hashable, ...]:
    sentinels, slot = params.get("connection_pool"), params.get("slot")
    if slot is not None and slot.clustered:  # whichever node was named
        return slot.key, slot.seeds, str(params.get("username"))
    parts = tuple(str(params.get(part)) for part in ("host", "port", "path", "db", "username"))
    if not isinstance(sentinels, Sentinels):
        return parts
    return *parts, sentinels.service_name, frozenset(sentinels.addresses)  # in any order


def name_of(params: Params) -> str:
    """Of the place, the same in each process that was given the same."""
    parts = (sorted(part) if isinstance(part, frozenset) else part for part in place_of(params))
    return " ".join(map(str, parts))


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
    """Return whether a row of CLIENT LIST names this package, by its library or its own name."""
    return f"({NAME}_v" in str(client.get("lib-name", "")) or client.get("name") == NAME
