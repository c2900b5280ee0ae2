"""kombu's tests name their broker `redis://...`; here that scheme means our transport, in this
process alone. It is set before kombu has resolved any."""

from __future__ import annotations

import kombu
from kombu.transport import TRANSPORT_ALIASES
from plugin import OURS

if OURS:
    TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), "celery_superfetch:Transport"))
    TRANSPORT_ALIASES["sentinel"] = "celery_superfetch:SentinelTransport"


def pytest_sessionstart() -> None:
    """Neither half may test the other's transport by mistake."""
    module = kombu.Connection("redis://").get_transport_cls().__module__
    assert module == ("celery_superfetch.transport.transport" if OURS else "kombu.transport.redis")
