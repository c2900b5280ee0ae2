"""The caps of the dead set, which ``dead_set.py`` passes to its scripts; it asks no server.
Messages that never ran have caps apart from those of real jobs: a producer of junk, or of jobs
whose task no worker has, pushes none of the real ones out."""

from __future__ import annotations

from typing import NamedTuple

from ..model.config import Config
from ..model.strikes import Recovery
from .keys import Keys

JUNK_LIMIT = 1000  # unparseable items of all apps
JUNK_BYTES = 16 * 1024 * 1024
#: An unparseable item is no job, and its head is enough to find its sender.
JUNK_WHOLE_BYTES = 1024 * 1024

NEVER_RAN_BYTES = (
    64 * 1024 * 1024
)  # of messages of one app that never ran; `dead_limit` counts them
#: Longer messages keep their head alone; a shorter one can be retried when a worker knows its task.
NEVER_RAN_WHOLE_BYTES = 16 * 1024 * 1024


class Cap(NamedTuple):
    """A bound on one kind of dead jobs, the oldest of which are dropped for newer ones."""

    kind: str  # "ran", "never_ran" or "junk"
    key: str  # the ZSET of its jobs
    most_jobs: int
    most_bytes: int = 0  # of the records that it keeps; 0: any number
    most_whole_bytes: int = 0  # of one record; of a longer one only a head is kept; 0: any number


class Caps(NamedTuple):
    """The caps that one app's kills and passes keep."""

    ran: Cap
    never_ran: Cap
    junk: Cap

    @classmethod
    def of(cls, keys: Keys, config: Config) -> Caps:
        app, limit = config.app_name, config.dead_limit
        return cls(
            Cap("ran", keys.dead_of(app), limit),
            Cap(
                "never_ran",
                keys.dead_never_ran(app),
                limit,
                NEVER_RAN_BYTES,
                NEVER_RAN_WHOLE_BYTES,
            ),
            Cap("junk", keys.dead_junk, JUNK_LIMIT, JUNK_BYTES, JUNK_WHOLE_BYTES),
        )


def cap_of(recovery: Recovery, keys: Keys, config: Config) -> Cap:
    """Return the cap that a job counts in. Another app's cap has no limits here: that app's own
    passes keep them."""
    caps, app = Caps.of(keys, config), recovery.app_name
    if not recovery.parsed:
        return caps.junk
    cap = caps.never_ran if recovery.never_ran else caps.ran
    if app == config.app_name:
        return cap
    key = keys.dead_never_ran(app) if recovery.never_ran else keys.dead_of(app)
    return cap._replace(key=key, most_jobs=0, most_bytes=0)
