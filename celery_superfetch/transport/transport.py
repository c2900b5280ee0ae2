"""The kombu transports: their options, their connections to the broker and to the event loop.

``install()`` names one to Celery, or an application names it to ``kombu.Connection``; kombu makes
one with each connection. It keeps nothing that a death of the process could lose.
"""

from __future__ import annotations

from typing import Any

from kombu.transport import redis

from ..errors import ConfigError
from ..model.config import OPTIONS, Config
from ..model.lazy import lazy_property
from ..store.wire.connections import ASKED_ONCE, Params, discreetly, sentinel_params
from ..store.wire.server import warn_once
from ..store.wire.slots import TAGGED
from .channel import Channel
from .poller import Poller

#: Options that kombu and Celery read with a Redis broker, beside those a channel takes over.
KOMBU_OPTIONS = (
    "callback connect_retries_timeout connection_pool_kwargs credential_provider errback "
    "interval_max interval_start interval_step max_retries polling_interval reauth_check_interval "
    "retry_on_error socket_read_size"
)

#: Seconds after which a producer's first call begins no new try to connect, where another server
#: may take over: a later call's four tries take no longer (docs/guide/cluster.md).
FIRST_CALL = 25.0

#: Options of kombu that pass unread.
KNOWN_OPTIONS = {*KOMBU_OPTIONS.split(), *redis.SentinelChannel.from_transport_options}


def _keep_transport(client: Any) -> None:
    """Let a connection that names this transport by its path keep it through a failover: kombu's
    ``switch`` would go by the next URL's scheme, back to its own transport without a word."""
    name = client.transport_cls
    if "switch" in vars(client) or (isinstance(name, str) and ":" not in name):
        return
    switch = client.switch

    def keep(url: str) -> None:
        switch(url)
        client.transport_cls = name

    client.switch = keep


def discreet(connection: Any) -> str:
    """The URL of a connection without its password, or a sign of one that it does not have."""
    url: str = connection.as_uri()
    # The sign may have a user before it all the same: AMQP's default one.
    masked = url if connection.password else url.replace(":**@", "@", 1)
    return masked.replace("://@", "://", 1)


class Transport(redis.Transport):
    """kombu's Redis transport with reliable fetch."""

    Channel = Channel
    may_fail_over = False

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        try:
            self.config  # noqa: B018 - a word now, to whoever only publishes; who consumes is refused
        except ConfigError as exc:
            warn_once(f"celery_superfetch: {exc} (a worker refuses to start with it)")
        else:
            if names := {*(client.transport_options or ())} - {*OPTIONS, *KNOWN_OPTIONS}:
                warn_once(
                    f"celery_superfetch: of broker_transport_options, {', '.join(sorted(names))} "
                    "means nothing with a Redis broker; is it another's, or misspelt?"
                )
        self.cycle = Poller()
        _keep_transport(client)
        prefix = str(client.transport_options.get("global_keyprefix") or "")
        if self.may_fail_over or len(client.alt) > 1 or TAGGED.match(prefix):
            # Celery's 4 s would end a process's first call while others still look for a primary.
            client.transport_options.setdefault("connect_retries_timeout", FIRST_CALL)

    @lazy_property
    def config(self) -> Config:
        """The package's options. Raise ``ConfigError`` where one is impossible."""
        return Config.from_options(self.client.transport_options or {}, KNOWN_OPTIONS)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Let Celery's loop watch this connection; Celery calls this at each connect."""
        before = set(loop.on_tick)
        super().register_with_event_loop(connection, loop)
        self.cycle.attach(loop, loop.on_tick - before)


class SentinelChannel(Channel, redis.SentinelChannel):
    """kombu's Sentinel channel; jobs that want an ack are fetched reliably."""

    def _sentinel_managed_pool(self, asynchronous: bool = False) -> Any:
        given = getattr(self, "sentinel_kwargs", None)
        self.sentinel_kwargs = {**ASKED_ONCE, **(given or {})}
        pool = super()._sentinel_managed_pool(asynchronous)
        if asked := getattr(pool, "sentinel_manager", None):  # kombu's own tests have none
            asked.discover_master = discreetly(asked.discover_master, self.sentinel_kwargs)
        return pool

    def _is_shareable(self, made: Any) -> bool:
        return hasattr(made, "sentinel_manager")  # kombu's own tests have none

    def _params_of(self, made: Any) -> Params:
        # kombu's pool knows the Sentinels, credentials and TLS, each as that version has it.
        self._managed = sentinel_params(made)
        return self._managed

    def _slot(self, params: Params) -> None:
        return None  # Sentinels say where the primary is, and know no cluster

    def here(self) -> Params:
        self.pool  # noqa: B018 - kombu's is made with it
        return self._managed

    def elsewhere(self) -> list[Params]:
        return []  # the other URLs are Sentinels, which ``here`` has asked for


class SentinelTransport(Transport):
    """Reliable fetch from the primary that Sentinels name."""

    default_port = redis.SentinelTransport.default_port
    Channel = SentinelChannel
    may_fail_over = True

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        if not (client.transport_options or {}).get("master_name"):
            self.config  # noqa: B018 - it may be there under a name that is nearly right
            raise ConfigError(
                "sentinel:// needs to know which primary is meant: set 'master_name' in "
                "broker_transport_options to the name that the Sentinels monitor it by"
            )
