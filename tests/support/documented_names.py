"""Names that a port uses and that are in the published API reference of their project: no foreign
names, but a new version may still change them, so a test looks for each.

Each name is in the reference as an entry of its own (checked with Sphinx: the pages below, made of
the versions installed). A page under `internals/reference` of Celery's documentation does not
count, and neither does `celery.worker.state`, which calls itself internal.
"""

from __future__ import annotations

from support.private_names import names

#: By the page that names them; below https://docs.celeryq.dev/en/stable/reference/,
#: https://docs.celeryq.dev/projects/kombu/en/stable/reference/,
#: https://redis.readthedocs.io/en/stable/ and https://www.gevent.org/api/.
DOCUMENTED = names("""
celery app.
    celery.app.amqp: amqp:AMQP.send_task_message
    celery.app.task: task:Task.Request task:Task.Strategy~celery.worker.strategy:default
        task:Task.on_replace(sig)
celery worker.consumer.consumer:Consumer.
    celery.worker.consumer.consumer: update_strategies() on_unknown_task(body,message,exc)
        on_invalid_task(body,message,exc) on_decode_error(message,exc)
celery worker.request:Request.
    celery.worker.request: acknowledge() cancel(pool) chord execute_using_pool(pool)~on_accepted
        on_accepted(pid,time) on_failure(exc_info) on_timeout(soft,timeout) reject(requeue=)
        revoked() terminate(pool,signal) time_limits time_start
celery worker.worker:
    celery.worker.worker: WorkController.wait_for_soft_shutdown()
kombu asynchronous.hub:
    kombu.asynchronous.hub: Hub.poller
kombu transport.redis:Channel.
    kombu.transport.redis: active_queues client pool priority(n) priority_steps sep
kombu transport.virtual:
    kombu.transport.virtual: QoS.restore_unacked() QoS.restore_unacked_once(stderr)
        Channel.queue_declare(queue,passive) Channel.queue_purge(queue)
        BrokerState.queue_bindings(queue) BrokerState.exchanges Message.serializable()
redis connection:
    connections.html: ConnectionPool.release(connection)
gevent
    gevent.monkey: monkey:get_original(mod_name,item_name)
""")
