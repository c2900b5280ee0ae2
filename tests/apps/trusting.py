"""The shop, whose jobs may start without asking for as long as they like: the control."""

from __future__ import annotations

import os

from apps.build import build_app
from celery_superfetch import leases

leases.START_LEASE = leases.HEARTBEATS = 1e6

app = build_app(os.environ)
