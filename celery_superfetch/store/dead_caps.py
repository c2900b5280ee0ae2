"""The caps of the dead set: how many jobs and bytes it keeps of each kind of dead jobs.

There are three kinds, each with a cap: jobs that ran; messages that never ran, since their task is
unknown or they could not be received; and junk, which cannot be parsed. If they shared a cap, a
producer of junk would push real jobs out.

``dead_set.py`` calls it when it dead-letters a job (for a reaper or for an owner, the process that
has claimed the job) and when a reaper's pass trims the dead set. The file only computes, and sends
nothing to Redis: if the process dies, nothing has to be repaired.
"""

from __future__ import annotations

from typing import NamedTuple

from ..model.config import Config
from ..model.strikes import Recovery
from .keys import Keys

JUNK_LIMIT = 1000  # items of junk, of all apps together
JUNK_BYTES = 16 * 1024 * 1024  # bytes of junk, of all apps together
#: The length (bytes) up to which an item of junk is kept whole. Of a longer one only the first
#: bytes are kept: they are enough to find its sender.
JUNK_WHOLE_BYTES = 1024 * 1024

#: The bytes that all messages of one app which never ran may take together. Their number is limited
#: by `dead_limit`.
NEVER_RAN_BYTES = 64 * 1024 * 1024
#: The length (bytes) up to which a message that never ran is kept whole: it can be retried when a
#: worker has its task. Of a longer one only the first bytes are kept.
NEVER_RAN_WHOLE_BYTES = 16 * 1024 * 1024


class Cap(NamedTuple):
    """A limit on one kind of dead jobs. Where it is exceeded, the oldest jobs are dropped."""

    kind: str  # "ran", "never_ran" or "junk"
    key: str  # the ZSET of the jobs under this cap
    most_jobs: int  # 0: this process does not enforce the cap, which is another app's (``cap_of``)
    most_bytes: int = 0  # of the records of all its jobs together; 0: no limit
    #: The length (bytes) up to which a message is kept whole; of a longer one only the first bytes
    #: are kept. 0: no limit.
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
    """Return the cap under which a job is counted that is about to be dead-lettered. A reaper may
    dead-letter a job of another app on the same queue. That job counts under the cap of its own
    app, whose limits are not known here: the passes of that app enforce them."""
    caps, app = Caps.of(keys, config), recovery.app_name
    if not recovery.parsed:
        return caps.junk
    cap = caps.never_ran if recovery.never_ran else caps.ran
    if app == config.app_name:
        return cap
    key = keys.dead_never_ran(app) if recovery.never_ran else keys.dead_of(app)
    return cap._replace(key=key, most_jobs=0, most_bytes=0)
