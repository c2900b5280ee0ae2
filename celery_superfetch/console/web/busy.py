"""The refusal of a search or a change, since too many are under way; `page` answers it with 503."""

from __future__ import annotations

from ...errors import SuperfetchError

CHANGE_RUNS = "another change of many jobs is running: try again when it has ended"

BUSY_S = 2  # seconds after which a browser that was refused asks again


class Busy(SuperfetchError):
    """The page is busy: it starts no further search, or no further change of many jobs."""
