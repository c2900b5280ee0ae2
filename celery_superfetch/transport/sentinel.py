"""The transport for ``sentinel://``: kombu's own, with reliable fetch."""

from __future__ import annotations

from typing import Any

from kombu.transport import redis

from ..errors import ConfigError
from ..store.wire.connections import ASKED_ONCE, Params, discreetly, sentinel_params
from .channel import Channel
from .transport import Transport


class SentinelChannel(Channel, redis.SentinelChannel):
    """kombu's Sentinel channel; jobs that want an ack are fetched reliably."""

    def _sentinel_managed_pool(self, asynchronous: bool = False) -> Any:
        given = getattr(self, "sentinel_kwargs", None)
        self.sentinel_kwargs = {**ASKED_ONCE, **(given or {})}
        pool = super()._sentinel_managed_pool(asynchronous)
        sentinel = pool.sentinel_manager
        sentinel.discover_master = discreetly(sentinel.discover_master, self.sentinel_kwargs)
        return pool

    def here(self) -> Params:
        # kombu's pool knows the Sentinels, credentials and TLS, each as that version has it.
        return sentinel_params(self.pool)

    def elsewhere(self) -> list[Params]:
        return []  # the other URLs are Sentinels, which ``here`` has asked for


class SentinelTransport(Transport):
    """Reliable fetch from the primary that Sentinels name."""

    default_port = redis.SentinelTransport.default_port
    Channel = SentinelChannel

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        if not (client.transport_options or {}).get("master_name"):
            self.config  # noqa: B018 - it may be there under a name that is nearly right
            raise ConfigError(
                "sentinel:// needs to know which primary is meant: set 'master_name' in "
                "broker_transport_options to the name that the Sentinels monitor it by"
            )
