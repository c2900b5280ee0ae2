"""An owner under gevent without Celery, first with a free hub, then blocked: `hub.py URL DIR`."""

# ruff: noqa: E402 - gevent patches before anything else is imported

from gevent import monkey

monkey.patch_all()

import sys
import time
from pathlib import Path

from redis.connection import parse_url

from celery_superfetch.model.config import Config
from celery_superfetch.owner.owner import Owner

url, directory = sys.argv[1], Path(sys.argv[2])
membership = Owner(parse_url(url), Config(heartbeat_interval=0.1, owner_ttl=5))
membership.join(1, {"mail": 0})
(directory / "joined").touch()
while not (directory / "block").exists():
    time.sleep(0.05)
while not (directory / "end").exists():
    sum(range(1000))
membership.leave(1)
