"""kombu's transport, channels and event loop, with reliable fetch. It works without Celery, and
never imports it.

kombu creates the objects: a ``Transport`` for each connection, with one ``Poller`` and channels. A
channel that consumes has a ``FetchLoop``, which claims jobs, and a ``QoS``, which keeps what was
delivered.
"""
