"""A result backend for a Redis Cluster: all results are in one hash slot, as the jobs are, since
Celery has no result backend for clusters.

Celery makes a ``RedisBackend`` in each process whose ``result_backend`` names it. A worker that
starts calls ``check_results``. If the process dies, a result is stored or it is not, as with
Celery's own backend.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from celery.backends import redis
from redis.exceptions import RedisError

from ..errors import ConfigError
from ..store.redis.connections import ASKED_ONCE, following_params
from ..store.redis.pools import shared_client
from ..store.redis.server import info
from ..store.redis.slots import address_of, slot_of


class RedisBackend(redis.RedisBackend):
    """Celery's own Redis backend on a Redis Cluster. The name in braces in the prefix puts all
    results into one hash slot; the connections find the node that serves this slot. A second URL,
    after ``;``, is another node of the cluster, in case the first one is away.

    >>> app.conf.result_backend = "celery_superfetch:RedisBackend+redis://one/0;redis://another/0"
    >>> app.conf.result_backend_transport_options = {"global_keyprefix": "{shop}:"}

    Raises:
        ConfigError: the prefix has no name in braces.
    """

    def __init__(self, *args: Any, url: str | None = None, **kwargs: Any) -> None:
        first, *others = (url or "").split(";")
        super().__init__(*args, url=first or None, **kwargs)
        params: dict[str, Any] = vars(self)["connparams"]
        nodes = [(params["host"], params["port"]), *map(address_of, others)]
        options = self.app.conf.result_backend_transport_options or {}
        prefix = options.get("global_keyprefix") or ""
        slot = slot_of(prefix, nodes)
        if slot is None:
            raise ConfigError(
                f"the result backend is a cluster, and the prefix of results, {prefix!r}, has no "
                "name in braces, so they would be on several nodes. Set "
                'result_backend_transport_options = {"global_keyprefix": "{shop}:"}, with a name '
                "of your own, for producers and workers alike"
            )
        slot.clustered = True  # known here; asking the nodes would fail while some are away
        # With these parameters each connection goes to the node that serves the slot.
        self.connparams = following_params(params, slot)


def check_results(app: Any) -> None:
    """Raise ConfigError if the app has Celery's own result backend, and that is a cluster. A server
    that does not answer passes."""
    if type(app.backend) is not redis.RedisBackend or "path" in app.backend.connparams:
        return
    facts: dict[str, Any] = {}
    params = {**app.backend.connparams, **ASKED_ONCE}
    with suppress(RedisError, OSError), shared_client(params) as client:
        facts = info(client, "cluster")
    if str(facts.get("cluster_enabled", "0")) == "1":
        raise ConfigError(
            "the result backend is a cluster, which Celery's own backend does not support: "
            "results could not be stored, and jobs could not be acked. Put "
            '"celery_superfetch:RedisBackend+" before the URL in result_backend, and set '
            'result_backend_transport_options = {"global_keyprefix": "{shop}:"}, with a name of '
            "your own, for producers and workers alike"
        )
