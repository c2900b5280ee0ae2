"""kombu's transport, channels and event loop, with reliable fetch; never imports Celery.

A channel that consumes has a ``FetchLoop``, and a ``QoS`` that keeps what was delivered."""
