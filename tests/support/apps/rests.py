"""The shop, where a first rest for a suspect lasts so long, and the work after it: RESTS="1,4"."""

from __future__ import annotations

import os

from celery_superfetch.transport.fetch import probation
from support.apps.shop import app  # noqa: F401

first, work = os.environ["RESTS"].split(",")
probation.FIRST_REST, probation.WORK = float(first), int(work)
