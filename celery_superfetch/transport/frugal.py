"""kombu's Redis channel without connections that it does not use.

kombu's own channel has two connection pools, opens a connection in each to ping the server, and
keeps both until it is closed. Managed services sell plans by the number of connections. This one
uses the pool of its process for all commands but BRPOP, and has a connection for BRPOP only while
it consumes a queue without acks.

``Channel`` (``channel.py``) inherits from it, and kombu calls all of its methods, in the thread
that uses the channel: a producer's, or that of a worker's event loop.

If the process dies, its connections close, and no key has to be removed. A message that the server
sends by BRPOP at that moment is lost, as with stock kombu: the queue has no acks.

Foreign names:

kombu transport.redis:Channel.
    keep no connection that is not used: client _create_client(asynchronous=) _in_poll _pool
        _get_pool(asynchronous=) _disconnect_pools() _fanout_queues
        _on_connection_disconnect(connection) active_queues _basic_cancel(consumer_tag)
        _brpop_read() _connparams(asynchronous)
"""

from __future__ import annotations

from typing import Any

from kombu.transport import redis

from ..model.lazy import lazy_property
from ..store.redis.connections import Params
from ..store.redis.pools import SharedPool, shared_pool


class FrugalChannel(redis.Channel):
    """A channel that shares a connection pool with the other channels of its process, and has a
    connection for BRPOP only while it consumes a queue without acks."""

    _pool: Any = None  # the shared pool
    _is_made = False  # kombu's constructor has returned
    _closing_connection: Any = None  # the connection for BRPOP, while this channel closes it

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_made = True
        # kombu has pinged the server with a client on the shared pool, and keeps it as its client
        # for BRPOP. It is forgotten: BRPOP gets a connection of its own, when it needs one.
        self.__dict__.pop("client", None)

    def _get_pool(self, asynchronous: bool = False) -> Any:
        """Return the pool that all channels of this process and its owner (the object that claims
        and acks its jobs) share at one server.

        ``asynchronous``: return kombu's own pool, for BRPOP and broadcasts: its connections have to
        tell this channel when they are lost.
        """
        made = super()._get_pool(asynchronous)
        if asynchronous or not self._is_shareable(made):
            return made
        pool = shared_pool(self._params_of(made))
        pool.enter(self)
        return pool

    def here(self) -> Params:
        """Return the parameters of connections to this channel's database."""
        params: Params = self._connparams()
        return params

    def _is_shareable(self, made: Any) -> bool:
        """Return whether a shared pool may replace the pool that kombu has made.
        ``SentinelChannel`` overrides it."""
        return True

    def _params_of(self, made: Any) -> Params:
        """Return the parameters of the connections of a pool that kombu has made;
        ``SentinelChannel`` overrides it."""
        return self.here()

    def _disconnect_pools(self) -> None:
        # kombu would disconnect the pool, which other channels may use.
        if isinstance(self._pool, SharedPool):
            self._pool.leave(self)
            self._pool = None
        super()._disconnect_pools()

    @lazy_property
    def client(self) -> Any:
        """kombu's client for BRPOP, with a connection of its own. In kombu's constructor, which
        pings the server with it, it uses the shared pool: otherwise each producer would open a
        connection that it never uses again."""
        return self._create_client(asynchronous=self._is_made)

    def _close_idle_client(self) -> None:
        """Close the connection for BRPOP if no queue is consumed with it. If it stayed open and the
        server (``timeout``) or a firewall closed it, kombu would take the broker for lost."""
        client = self.__dict__.get("client")
        if client is None or self._in_poll or self.active_queues or self.connection is None:
            return  # ``_in_poll``: a BRPOP is under way, and its reply may have a message
        connection, pool = client.connection, client.connection_pool
        if connection is None:
            return  # the application uses ``channel.client`` itself, without BRPOP
        self.connection.cycle.forget(self, client)
        del self.__dict__["client"]
        client.connection = None
        # kombu must not take this for a lost connection (``_on_connection_disconnect``): before 5.7
        # it would poll this channel no more.
        self._closing_connection = connection
        try:
            connection.disconnect()
        finally:
            self._closing_connection = None
        pool.release(connection)

    def _on_connection_disconnect(self, connection: Any) -> None:
        if connection is not self._closing_connection:
            super()._on_connection_disconnect(connection)

    def _basic_cancel(self, consumer_tag: str) -> Any:
        result = super()._basic_cancel(consumer_tag)
        self._close_idle_client()
        return result

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        finally:
            self._close_idle_client()

    def close(self) -> None:
        if not self.closed and self._fanout_queues:
            # kombu deletes the bindings of this channel's broadcast queues (auto-delete) only if it
            # has a client for BRPOP.
            self.__dict__.setdefault("client", self._create_client())
        super().close()
