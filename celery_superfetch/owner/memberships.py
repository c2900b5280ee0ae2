"""The memberships of this process: one for each database and configuration."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Sequence

from ..model.config import Config
from ..store.wire.connections import Params, place_of
from .in_flight.runner import CONSUMER, Runner
from .membership import Membership

#: The places of a database, options, and who runs the jobs.
_Key = tuple[frozenset[object], Config, Runner]

_memberships: dict[_Key, Membership] = {}
_memberships_lock = threading.Lock()


def membership_for(
    params: Params, config: Config, elsewhere: Sequence[Params] = (), runner: Runner = CONSUMER
) -> Membership:
    """The membership of this process in the database that ``params`` lead to.

    Arguments:
        elsewhere: where else it may be found: the servers of a failover list.
        runner: who runs its jobs. Each Celery worker is an owner of its own: one that was
            embedded may end, with its pool and its loop, beside others that go on.
    """
    place = place_of(params)
    # Two apps with other settings, or another name, are owners of their own.
    group = frozenset([place, *map(place_of, elsewhere)])
    found = _make_once(
        (group, config, runner), lambda: Membership(params, config, elsewhere, runner)
    )
    if found.follow(params):
        return found
    # Servers of a list need not be replicas of each other.
    alone = frozenset([place])
    return _make_once((alone, config, runner), lambda: Membership(params, config, (), runner))


def _make_once(key: _Key, make: Callable[[], Membership]) -> Membership:
    with _memberships_lock:
        if key not in _memberships:
            for old, membership in list(_memberships.items()):
                if membership.heart.stopping and not membership.joined:
                    del _memberships[old]  # its worker has ended
            _memberships[key] = make()
        return _memberships[key]


def memberships() -> list[Membership]:
    """All memberships of this process."""
    return list(_memberships.values())


def _after_fork() -> None:
    """A child never is the parent's owner; it registers itself if it ever claims."""
    global _memberships_lock
    _memberships_lock = threading.Lock()
    _memberships.clear()


@atexit.register
def _at_exit() -> None:
    for membership in memberships():
        membership.leave_for_good()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
