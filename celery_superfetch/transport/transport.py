"""The kombu transports, one for Redis and one for Sentinels: they give kombu the reliable channel
and the poller, and check the options.

``install()`` names a transport to Celery, or an application names it to ``kombu.Connection``. kombu
makes one for each connection, in workers, producers and commands, in the thread that connects. In a
worker Celery calls ``register_with_event_loop`` each time it has connected.

A transport has no state outside of the process. If the process dies, nothing has to be repaired.

Names of other projects that they do not document follow; a test checks each.

Foreign names:

kombu transport.redis:
    ask Sentinels: SentinelChannel._sentinel_managed_pool(asynchronous)
redis
    know where Sentinels are: sentinel:SentinelConnectionPool.sentinel_manager
"""

from __future__ import annotations

from typing import Any

from kombu.transport import redis

from ..errors import ConfigError
from ..model.config import TYPE_BY_OPTION, Config
from ..model.lazy import lazy_property
from ..store.redis.connections import ASKED_ONCE, Params, sentinel_params, without_passwords
from ..store.redis.server import warn_once
from ..store.redis.slots import HASH_TAGGED
from .channel import Channel
from .poller import Poller

#: Options of broker_transport_options that kombu and Celery read with a Redis broker, besides those
#: in ``from_transport_options`` of kombu's channel.
KOMBU_OPTIONS = (
    "callback connect_retries_timeout connection_pool_kwargs credential_provider errback "
    "interval_max interval_start interval_step max_retries polling_interval reauth_check_interval "
    "retry_on_error socket_read_size"
)

#: If another server may take over: seconds for which a producer's first call begins new tries to
#: connect. Each later call makes four tries, which together take about as long
#: (docs/run/topologies.md).
FIRST_CALL = 25.0

#: All options that kombu and Celery read: this package does not warn that they mean nothing.
KNOWN_OPTIONS = {*KOMBU_OPTIONS.split(), *redis.SentinelChannel.from_transport_options}


def _keep_transport(client: Any) -> None:
    """Make a connection keep this transport when it switches to the next URL of a failover list.
    kombu's ``switch`` chooses by the scheme of that URL: without this it would silently choose
    kombu's own transport. A connection that names the transport by a scheme needs nothing."""
    name = client.transport_cls
    is_done = "switch" in vars(client)  # an earlier call has set ``keep`` below
    if is_done or (isinstance(name, str) and ":" not in name):
        return
    switch = client.switch

    def keep(url: str) -> None:
        switch(url)
        client.transport_cls = name

    client.switch = keep


def masked_url(connection: Any) -> str:
    """Return the URL of a connection with ``**`` in the place of its password, and without ``**``
    if it has none: kombu's ``as_uri`` may add it then."""
    url: str = connection.as_uri()
    # For AMQP kombu adds its default user as well.
    masked = url if connection.password else url.replace(":**@", "@", 1)
    return masked.replace("://@", "://", 1)


class Transport(redis.Transport):
    """kombu's Redis transport with reliable fetch."""

    Channel = Channel
    may_fail_over = False

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        try:
            self.config  # noqa: B018 - read now: a producer is warned, a consumer is refused later
        except ConfigError as exc:
            warn_once(f"celery_superfetch: {exc}. A worker refuses to start with it.")
        else:
            if names := {*(client.transport_options or ())} - {*TYPE_BY_OPTION, *KNOWN_OPTIONS}:
                warn_once(
                    "celery_superfetch: broker_transport_options that have no effect with Redis: "
                    f"{', '.join(sorted(names))}. Correct the spelling, or remove them."
                )
        self.cycle = Poller()  # kombu's name for a transport's poller
        _keep_transport(client)
        prefix = str(client.transport_options.get("global_keyprefix") or "")
        if self.may_fail_over or len(client.alt) > 1 or HASH_TAGGED.match(prefix):
            # Celery's default of 4 s would end the first call of a process before a failover ends.
            client.transport_options.setdefault("connect_retries_timeout", FIRST_CALL)

    @lazy_property
    def config(self) -> Config:
        """The package's options. Raise ``ConfigError`` for an impossible value."""
        return Config.from_options(self.client.transport_options or {}, KNOWN_OPTIONS)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Make Celery's event loop watch this connection; Celery calls it at each connect. The
        poller gets the tick callbacks that kombu adds here, and removes them when it is closed:
        kombu would leave them in the loop."""
        before = set(loop.on_tick)
        super().register_with_event_loop(connection, loop)
        self.cycle.attach(loop, loop.on_tick - before)


class SentinelChannel(Channel, redis.SentinelChannel):
    """kombu's Sentinel channel; jobs that want an ack are fetched reliably."""

    def _sentinel_managed_pool(self, asynchronous: bool = False) -> Any:
        options = getattr(self, "sentinel_kwargs", None)
        self.sentinel_kwargs = {**ASKED_ONCE, **(options or {})}
        pool = super()._sentinel_managed_pool(asynchronous)
        # A pool without ``sentinel_manager`` is a fake one, in kombu's own tests.
        if manager := getattr(pool, "sentinel_manager", None):
            manager.discover_master = without_passwords(
                manager.discover_master, self.sentinel_kwargs
            )
        return pool

    def _is_shareable(self, made: Any) -> bool:
        return hasattr(made, "sentinel_manager")  # see ``_sentinel_managed_pool``

    def _params_of(self, made: Any) -> Params:
        # kombu's versions read Sentinels, credentials and TLS in different ways; the pool that this
        # version has made has them all.
        self._managed = sentinel_params(made)
        return self._managed

    def _slot(self, params: Params) -> None:
        return None  # Sentinels watch no cluster

    def server_params(self) -> Params:
        """Return the parameters of connections to the primary that the Sentinels name."""
        self.pool  # noqa: B018 - its first access calls ``_params_of``
        return self._managed

    def failover_targets(self) -> list[Params]:
        return []  # the other URLs are those of Sentinels, and ``server_params`` has all of them


class SentinelTransport(Transport):
    """Reliable fetch from the primary that Sentinels name."""

    default_port = redis.SentinelTransport.default_port
    Channel = SentinelChannel
    may_fail_over = True

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        if not (client.transport_options or {}).get("master_name"):
            self.config  # noqa: B018 - if the option's name is misspelt, this raises and says so
            raise ConfigError(
                "sentinel:// requires the name of the primary: set 'master_name' in "
                "broker_transport_options, as the Sentinels name it"
            )
