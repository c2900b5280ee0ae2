"""The owners of this process: one for each database, set of options and executor of jobs.

A channel asks for its owner when it is first used. A worker's maintenance thread, its release
thread and the code that stops it ask for all owners. At the exit of the process each owner leaves;
a forked child starts with none. If the process dies without an exit, no owner leaves: their records
and jobs stay on the server for a peer's reaper.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence

from ..model.config import Config
from ..store.redis.connections import Params, place_of
from .in_flight.executor import NO_POOL, Executor
from .owner import Owner

#: Key -> owner. The key is the servers of one database (``place_of``: address, database and user),
#: the options, and the executor of the jobs.
_owners: dict[tuple[frozenset[object], Config, Executor], Owner] = {}


def owner_for(
    params: Params,
    config: Config,
    failover_targets: Sequence[Params] = (),
    executor: Executor = NO_POOL,
) -> Owner:
    """Return the owner for the database at ``params``; make it if there is none. Apps with other
    settings or another name have owners of their own, and so has each worker: an embedded worker
    may end while others in this process run.

    Arguments:
        failover_targets: servers that may take over from that of ``params``.
    """
    # The first round looks for the owner of all these servers together, for replicas that may take
    # over. If ``params`` leads to another server of them than before, that owner moves there, but
    # only if the server has its record, as a replica has. Without the record the servers are
    # independent: the second round finds or makes the owner of this server alone.
    for others in (failover_targets, ()):
        key = frozenset(map(place_of, [params, *others])), config, executor
        if key not in _owners:
            for old_key, owner in list(_owners.items()):
                if owner.stopping and not owner.name:  # its worker has ended
                    _owners.pop(old_key, None)
        # There is no lock, since a signal handler may ask at any moment. If another thread made the
        # owner meanwhile, ``setdefault`` returns that one, and this one is dropped unused.
        made = _owners.get(key) or Owner(params, config, others, executor)
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
