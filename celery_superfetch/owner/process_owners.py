"""The owners of this process: one for each database, set of options and runner of jobs.

A channel asks for its owner when it is first used; a worker's threads ask for all of them. At the
exit of the process each owner leaves; a forked child starts with none. If the process dies without
an exit, no owner leaves: their records and jobs stay on the server for a peer's reaper.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence

from ..model.config import Config
from ..store.redis.connections import Params, place_of
from .in_flight.executor import CONSUMER, Executor
from .owner import Owner

#: The places of a database, options, and the runner of the jobs -> the owner.
_owners: dict[tuple[frozenset[object], Config, Executor], Owner] = {}


def owner_for(
    params: Params, config: Config, elsewhere: Sequence[Params] = (), runner: Executor = CONSUMER
) -> Owner:
    """Return the owner for the database at ``params``; make it if there is none. Apps with other
    settings or another name have owners of their own, and so has each worker: an embedded worker
    may end while others in this process run.

    Arguments:
        elsewhere: servers that may take over from that of ``params``.
    """
    # First the owner of all these servers together. If ``params`` now leads to another of them,
    # that owner follows, but only to a server that has its record, as a replica of its own server
    # does. Otherwise the servers are independent, and each has an owner of its own.
    for others in (elsewhere, ()):
        key = frozenset(map(place_of, [params, *others])), config, runner
        if key not in _owners:
            for old_key, owner in list(_owners.items()):
                if owner.stopping and not owner.name:  # its worker has ended
                    _owners.pop(old_key, None)
        # No lock: another thread may be faster, and a signal handler may ask at any moment.
        made = _owners.get(key) or Owner(params, config, others, runner)
        owner = _owners.setdefault(key, made)
        if owner.follow(params):
            break
    return owner


def owners_of_process() -> list[Owner]:
    """Return all owners of this process."""
    return list(_owners.values())


@atexit.register
def _at_exit() -> None:
    for owner in owners_of_process():
        owner.leave_for_good()


if hasattr(os, "register_at_fork"):
    # A forked child must not act for its parent's owners; it makes its own if it ever claims.
    os.register_at_fork(after_in_child=_owners.clear)
