"""The caps of the dead set: how many jobs and bytes it keeps of each kind.

``dead_set.py`` calls it when it dead-letters a job (a reaper or an owner does) and when a reaper's
pass trims the dead set. The file only computes: it sends nothing to Redis, so that a death of the
process in here leaves nothing.

There are three kinds, each with a cap: jobs that ran; messages that never ran, since their task is
unknown or they could not be received; and junk, which cannot be parsed. If they shared a cap, a
producer of junk would push real jobs out.
"""

from __future__ import annotations

from typing import NamedTuple

from ..model.config import Config
from ..model.strikes import Recovery
from .keys import Keys

JUNK_LIMIT = 1000  # items of junk, of all apps together
JUNK_BYTES = 16 * 1024 * 1024  # bytes of junk, of all apps together
#: Bytes of an item of junk that is kept whole. Of a longer one only the first bytes are kept: they
#: are enough to find its sender.
JUNK_WHOLE_BYTES = 1024 * 1024

#: Bytes of messages of one app that never ran. Their number is limited by `dead_limit`.
NEVER_RAN_BYTES = 64 * 1024 * 1024
#: Bytes of a message that never ran and is kept whole: it can be retried when a worker has its
#: task. Of a longer one only the first bytes are kept.
NEVER_RAN_WHOLE_BYTES = 16 * 1024 * 1024


class Cap(NamedTuple):
    """A limit on one kind of dead jobs. Where it is exceeded, the oldest jobs are dropped."""

    kind: str  # "ran", "never_ran" or "junk"
    key: str  # the ZSET of the jobs under this cap
    most_jobs: int  # 0: this app does not enforce the cap (``cap_of``)
    most_bytes: int = 0  # of the records of all its jobs; 0: any number
    #: Bytes of a record that is kept whole; of a longer one only the first bytes; 0: any number.
    most_whole_bytes: int = 0


class Caps(NamedTuple):
    """The caps that one app enforces: when it dead-letters a job, and when its passes trim."""

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
    """Return the cap under which a job is counted. A reaper may dead-letter a job of another app
    on the same queue: that job counts under the cap of its own app, whose limits are not known
    here. The passes of that app enforce them."""
    caps, app = Caps.of(keys, config), recovery.app_name
    if not recovery.parsed:
        return caps.junk
    cap = caps.never_ran if recovery.never_ran else caps.ran
    if app == config.app_name:
        return cap
    key = keys.dead_never_ran(app) if recovery.never_ran else keys.dead_of(app)
    return cap._replace(key=key, most_jobs=0, most_bytes=0)
