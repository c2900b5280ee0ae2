"""Who this process is, in each database and with each set of options."""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence

from ..model.config import Config
from ..store.wire.connections import Params, place_of
from .in_flight.runner import CONSUMER, Runner
from .owner import Owner

#: The places of a database, options, and who runs the jobs -> this process there.
_owners: dict[tuple[frozenset[object], Config, Runner], Owner] = {}


def owner_for(
    params: Params, config: Config, elsewhere: Sequence[Params] = (), runner: Runner = CONSUMER
) -> Owner:
    """This process in the database that ``params`` lead to. Apps with other settings, or another
    name, are owners of their own, and so is each worker: an embedded one may end beside others."""
    # Servers of a list need not be replicas of each other: then each has one of its own.
    for others in (elsewhere, ()):
        key = frozenset(map(place_of, [params, *others])), config, runner
        if key not in _owners:
            for old, owner in list(_owners.items()):
                if owner.stopping and not owner.name:  # its worker has ended
                    _owners.pop(old, None)
        # No lock: another thread may be faster, and a signal handler may ask at any moment.
        made = _owners.get(key) or Owner(params, config, others, runner)
        owner = _owners.setdefault(key, made)
        if owner.follow(params):
            break
    return owner


def owners_here() -> list[Owner]:
    return list(_owners.values())


@atexit.register
def _at_exit() -> None:
    for owner in owners_here():
        owner.leave_for_good()


if hasattr(os, "register_at_fork"):
    # A child never is the parent's owner; it registers itself if it ever claims.
    os.register_at_fork(after_in_child=_owners.clear)
