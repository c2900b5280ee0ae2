"""The shop without one of the things that bring an owner through a failover: for controls."""

from __future__ import annotations

import os

from celery_superfetch.owner.heart import Heart
from celery_superfetch.owner.membership import Membership
from celery_superfetch.transport import channel
from support.apps.build import build_app

app = build_app(os.environ)

if os.environ["WITHOUT"] == "following":
    # As if the servers of a failover list had nothing to do with each other.
    Membership.follow = lambda self, params: params["port"] == self.home.params["port"]
    Heart._look_elsewhere = lambda self: None
elif os.environ["WITHOUT"] == "leaving":
    # READONLY is a reply like any other, as in stock redis-py.
    channel.leaving_replicas = lambda connection_class: connection_class
