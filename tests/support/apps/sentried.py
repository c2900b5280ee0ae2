"""The shop, watched by Sentry; what would be sent is written down beside the ledger.

RECIPE=1: as `examples/observability/sentry.py` has it.
"""

from __future__ import annotations

import json
import os
from typing import Any

import redis
import sentry_sdk
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.transport import Transport

from examples.observability.sentry import watch
from support.apps.build import build_app

EVENTS = "sentry"


class Collecting(Transport):
    """Sends nothing."""

    def capture_envelope(self, envelope: Any) -> None:
        event = envelope.get_event()
        if event is not None:
            with redis.Redis.from_url(os.environ["LEDGER_URL"]) as client:
                client.rpush(EVENTS, json.dumps(event, default=str))


chosen: dict[str, Any] = {"dsn": "http://key@127.0.0.1:9/1", "transport": Collecting()}
if os.environ.get("RECIPE") == "1":
    watch(**chosen)
else:
    sentry_sdk.init(**chosen, integrations=[CeleryIntegration()])
app = build_app(os.environ)
