"""A channel: translates kombu's calls to claims, acks and requeues.

kombu makes the channel and calls it, for producers (``basic_publish``) and for consumers
(``basic_consume``, ``basic_get``, ``close``); its ``FetchLoop`` calls ``deliver``. A worker's
``Intake`` settles jobs that its consumer cannot run. Most methods with an underscore override
kombu's.

If the process dies, nothing is left to do here: messages that were published are on their queues,
and jobs that were claimed are in the owner's private list, from which the reaper recovers them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from copy import copy
from functools import partial
from queue import Empty
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kombu.exceptions import OperationalError
from kombu.transport import redis
from kombu.utils import json
from redis import Redis
from redis.exceptions import ConnectionError, RedisError

from ..model.config import LONGEST, Config
from ..model.lazy import lazy_property
from ..model.log_text import one_line_each
from ..model.step import handing
from ..store.database import Database
from ..store.wire.connections import NotServed, Params, leading_home, name_of, ours, publishing
from ..store.wire.server import FULL, even_if_full, tried_again
from ..store.wire.slots import Slot, address_of, slot_of
from .fetch.queue_lists import QueueLists
from .frugal import FrugalChannel
from .intake import Intake
from .steps import is_published_as, publish_step

if TYPE_CHECKING:
    from ..model.job import Claimed
    from ..owner.owner import Owner
    from ..store.private_lists import PrivateLists
    from .fetch.fetch_loop import FetchLoop

logger = one_line_each(logging.getLogger(__name__))


def _qos(channel: Channel) -> Any:  # made on the first consume: a producer needs none of it
    from .deliveries import QoS

    return QoS(channel)


class Channel(FrugalChannel):
    """kombu's Redis channel; jobs that want an ack are fetched reliably."""

    _fetch: FetchLoop | None = None
    _steps: PrivateLists | None = None  # for steps alone
    _several = False  # what is published just now goes to several queues
    _unserved = False  # what is consumed has changed since somebody looked
    intake = Intake()  # a Celery worker sets its own

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._pid = os.getpid()
        #: Of queues fetched reliably; kombu knows one a connection, and two channels are two.
        self._callbacks: dict[str, Callable[[Any], Any]] = {}
        super().__init__(*args, **kwargs)
        self.QoS = _qos  # ack_emulation=False would bring one that forgets at once
        self._lists = QueueLists(self.queue_order_strategy)

    @property
    def database(self) -> Database:
        """For what a producer may do: none of our options matters there, and one may be wrong."""
        config = Config(global_keyprefix=self.global_keyprefix)
        return Database(Redis(connection_pool=self.pool), config)

    @lazy_property
    def place(self) -> str:
        """The name of where its database is."""
        return name_of(self.here())

    def elsewhere(self) -> list[Params]:
        """Return where the other servers of a failover list are; a cluster's are in ``here``."""
        places: list[Params] = []
        if (slot := self.here().get("slot")) and slot.clustered:
            return places
        port = self.connection.default_port
        for url in dict.fromkeys(self.connection.client.alt):
            client, channel = self.connection.client.clone(), copy(self)
            client.switch(url)
            channel.connection = SimpleNamespace(client=client, default_port=port)
            places.append(channel._connparams())
        return places

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        params: dict[str, Any] = super()._connparams(asynchronous)
        return ours(leading_home(params, self._slot(params)))

    def _slot(self, params: Params) -> Slot | None:
        """Return the slot of the key prefix, if this is a cluster. Each of its servers knows the
        others."""
        if "path" in params:
            return None
        seeds = [(params["host"], params["port"])]
        seeds += map(address_of, self.connection.client.alt or ())
        return slot_of(self.global_keyprefix, seeds)

    @property
    def active_queues(self) -> list[str]:
        """Return what kombu's BRPOP serves: queues without acks, which have nothing to protect."""
        return [queue for queue in super().active_queues if queue not in self._callbacks]

    def expires_of(self, queue: str) -> int:
        """Return the x-expires of a queue (ms); 0 for none."""
        expires = getattr(self, "_expires", {})  # came with kombu 5.7
        return min(int(expires.get(queue) or 0), int(LONGEST * 1000))

    def _new_queue(self, queue: str, *args: Any, **kwargs: Any) -> None:
        super()._new_queue(queue, *args, **kwargs)
        self._update_queue_cycle()  # it may expire otherwise than before

    def _queue_bind(self, exchange: str, *binding: Any) -> None:
        """Store the binding for producers. A full server refuses that, also where it is stored
        already, and a worker that ended by it could not drain it: so this does not fail. A producer
        that finds no binding stores it again (``_lookup``)."""
        with even_if_full(binding[-1], exchange), tried_again():
            super()._queue_bind(exchange, *binding)

    def _update_queue_cycle(self) -> None:
        super()._update_queue_cycle()
        self._unserved = True

    @property
    def consumes(self) -> bool:
        """Whether it fetches jobs; any thread may ask."""
        return bool(self._callbacks)

    @property
    def lists(self) -> QueueLists:
        """The queue lists that this channel consumes. They are computed when they are read after a
        change: kombu begins, and ends, a consumer's thousand queues one by one."""
        if self._unserved:
            self._unserved = False
            lists = {name: self._lists_of(name) for name in self._callbacks}
            self._lists.serve(lists, self.expires_of)
        return self._lists

    @property
    def owner(self) -> Owner:
        return self.fetch.owner

    @property
    def fetch(self) -> FetchLoop:
        """The fetch loop, made on the first consume: a producer needs none. Raise ``ConfigError``
        for a wrong option."""
        if self._fetch is None:
            from ..owner.process_owners import owner_for
            from .fetch.fetch_loop import FetchLoop
            from .versions import check_versions

            check_versions()
            poller, config = self.connection.cycle, self.connection.config
            owner = owner_for(self.here(), config, self.elsewhere(), poller.runner)
            self._fetch = FetchLoop(
                owner,
                poller,
                lists=lambda: self.lists,
                credit=self.qos.credit,
                deliver=self.deliver,
                requeue_waiting=self.qos.requeue_waiting,
            )
        return self._fetch

    def deliver(self, claimed: Claimed) -> bool:
        """Call the consumer with a claimed job; return False where the job went elsewhere. If the
        server fails before that, the job is ready again, and the error is raised."""
        callback = self._callbacks.get(self.lists.queue(claimed.job.queue_list))
        if callback is None:  # cancelled meanwhile
            self.fetch.requeue([claimed.job])
            return False
        try:
            gone = self.intake.intercept(claimed, self)
            message = None if gone else self.qos.receive(claimed)
        except (RedisError, OSError, MemoryError):
            self.fetch.backlog.ready.appendleft(claimed)  # it is requeued with those behind it
            raise
        if message is None or self.intake.park(message):
            return False
        try:
            callback(message)
        except Exception as exc:
            if not self.intake.refuse(message, exc):
                raise
        return True

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, *args: Any, **kw: Any) -> Any:
        if not no_ack and queue not in self._fanout_queues:
            self.fetch  # noqa: B018 - made here, where the connection's parameters are known
            self._callbacks[queue] = callback
        return super().basic_consume(queue, no_ack, callback, *args, **kw)

    def _basic_cancel(self, consumer_tag: str) -> Any:
        queue = self._tag_to_queue.get(consumer_tag)
        result = super()._basic_cancel(consumer_tag)
        if queue in self._callbacks and queue not in self._active_queues:
            del self._callbacks[queue]
            self.fetch.cancel(set(self._lists_of(queue)))
            self._update_queue_cycle()
        return result

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        if no_ack:
            return super().basic_get(queue, no_ack, **kwargs)
        lists = dict.fromkeys(self._lists_of(queue), self.expires_of(queue))
        while (claimed := self.fetch.claim_one(lists)) is not None:
            if (message := self.qos.receive(claimed)) is not None:
                self.owner.leases.deliver(claimed.job)
                return message
        return None

    def _get(self, queue: str) -> Any:
        """Return a message for ``basic_get(no_ack=True)``, marked as redelivered if it was requeued
        before, which the server knows and the message does not say. It is lost if the process dies
        now, as with stock kombu."""
        from ..store.queues import Queues
        from .deliveries import mark_redelivered

        taken = Queues(self.database).take(self._lists_of(queue), self.expires_of(queue))
        if taken is None:
            raise Empty
        payload, again = taken
        message = json.loads(payload)
        if again:
            mark_redelivered(message)
        return message

    def _lists_of(self, queue: str) -> list[str]:
        return [self._q_for_pri(queue, pri) for pri in self.priority_steps]

    def _purge(self, queue: str) -> int:
        from ..store.queues import Queues

        return int(super()._purge(queue)) + Queues(self.database).purge(self._lists_of(queue))

    def _size(self, queue: str) -> int:
        try:
            return int(super()._size(queue))
        except self.ResponseError as exc:
            if "WRONGTYPE" in str(exc):
                return 0  # whoever claims from it says so; a starting worker has other queues, too
            if FULL not in str(exc):
                raise
            from ..store.queues import Queues  # 6.2 queues no command of a transaction then

            lengths = Queues(self.database).lengths(self._lists_of(queue))
            return sum(length for length, _ in lengths if isinstance(length, int))

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        """Say that a queue exists, also where this channel consumes it and its list is empty: a
        passive declaration (``SimpleQueue.qsize``) would fail with 404 after the last message."""
        return queue in self._callbacks or bool(super()._has_queue(queue, **kwargs))

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        except NotServed as exc:  # a reply queue that was read last before the slot moved, say
            raise Empty from exc

    def basic_publish(self, message: Any, *args: Any, **kwargs: Any) -> Any:
        properties = message["properties"]
        # A task's message has both, in either protocol; a reply or a result of rpc:// has not.
        task = properties.get("correlation_id") if "reply_to" in properties else None
        token, self._several = publishing.set(task), False
        try:
            return super().basic_publish(message, *args, **kwargs)
        except AttributeError as exc:
            if self.connection is not None:
                raise
            # Another thread closed it, whose connection was lost. By its true name, kombu tries
            # again on a new channel; else a task's retry, sent at that moment, would be lost.
            raise ConnectionError("the channel was closed while it published") from exc
        finally:
            publishing.reset(token)

    def _put(self, queue: str, message: Any, **kwargs: Any) -> None:
        step = handing.get()
        if step is None or not is_published_as(step, message, self):
            return super()._put(queue, message, **kwargs)
        if self._steps is None or self._steps.client.connection_pool is not self.pool:
            from ..store.private_lists import PrivateLists

            self._steps = PrivateLists(self.database)
        ms, name = self.expires_of(queue), step.name(queue if self._several else "")
        first = self._q_for_pri(queue, self._get_message_priority(message))
        lists = [first, *(self._lists_of(queue) if ms else ())]
        publish_step(step, partial(self._steps.publish_step, name, redis.dumps(message), lists, ms))

    def _lookup(self, exchange: str, routing_key: str, default: Any = None) -> Any:
        queues = super()._lookup(exchange, routing_key, default)
        self._several = len(queues or ()) > 1
        if queues or not (task := publishing.get()):
            return queues
        for binding in self.state.exchanges.get(exchange, {}).get("table", ()):
            super()._queue_bind(exchange, *binding)  # as declared once; its error is the caller's
        if not (queues := super()._lookup(exchange, routing_key, default)):
            raise OperationalError(
                f"task {task} was not sent: on the server no queue is bound to exchange "
                f"{exchange!r} by routing key {routing_key!r}, and this process knows none. Name "
                "its queue where you send it, or start a worker that serves it"
            )
        logger.warning(
            "The bindings of exchange %r were gone from the server (by FLUSHALL, or evicted), and "
            "task %s on its way to no queue. They were declared again, and it was sent.",
            exchange,
            task,
        )
        return queues

    def close(self) -> None:
        if self._pid != os.getpid():
            self.closed = True  # kombu's pools close what a forked child inherited
            return
        fetch = self._fetch
        if fetch is not None and not self.closed:
            fetch.cancel()
        super().close()
        if fetch is not None:
            fetch.owner.leave(id(fetch), answered=fetch.reads.answered)
