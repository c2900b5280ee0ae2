"""Checks the installed versions of billiard, Celery, kombu and redis-py.

A consumer uses parts of these projects that they do not document, and a change there could silently
lose a job. So a version that was not tested is refused, or at least logged.

A worker calls ``check_versions`` when it starts, and ``Channel.fetch`` calls it in each process
before the first claim. The check sends nothing to Redis, and with a version that is refused nothing
is claimed. So if the process dies, nothing has to be repaired.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from functools import cache

from ..errors import UnsupportedVersion
from ..model.log_text import one_line_each

logger = one_line_each(logging.getLogger(__name__))

#: Project -> the oldest and the newest version that the tests ran with, and the first newer one
#: that is refused. ``setup.cfg`` has the same.
TESTED = {
    "billiard": ("4.2.1", "4.3.2", "4.4"),
    "celery": ("5.5", "5.7.0", "5.8"),
    "kombu": ("5.5", "5.7.0", "5.8"),
    "redis": ("5.0", "8.1.0", "9"),
}

#: A version of kombu, and one of redis-py: from the first on, kombu does not connect with an older
#: redis-py than the second. pip may install the two together, since kombu requires redis-py only in
#: its extra ``redis``. This package does not require that extra: its upper bounds exclude versions
#: of redis-py that work, and that users may need.
KOMBU_NEEDS_REDIS = ("5.7", "6.1")

OVERRIDE = "SUPERFETCH_ANY_VERSION"  # environment variable: 1 allows versions that were not tested


@cache
def check_versions() -> None:
    """Raise UnsupportedVersion for a version that may lose jobs, unless the environment allows it,
    and for a kombu and a redis-py that do not work together. Log a warning for a version that is a
    little newer than the tested ones."""
    for project, (oldest, newest, end) in TESTED.items():
        if project not in sys.modules:  # a plain kombu consumer does not import Celery and billiard
            continue
        version = str(sys.modules[project].__version__)
        number = _numbers(version)
        if _numbers(oldest) <= number <= _numbers(newest):
            continue
        text = (
            f"celery_superfetch was tested with {project} {oldest} to {newest}, not with {version}"
        )
        pin = f"pip install '{project}>={oldest},<{end}'"
        if _numbers(newest) < number < _numbers(end):
            logger.warning(
                "%s. It is used nevertheless. If jobs are lost, install the tested one: pip "
                "install '%s==%s'",
                text,
                project,
                newest,
            )
        elif os.environ.get(OVERRIDE) == "1":
            logger.warning(
                "%s. It is used since %s=1, and may lose jobs. To fix it: %s", text, OVERRIDE, pin
            )
        else:
            raise UnsupportedVersion(
                f"{text}, which may lose jobs without an error. No job was claimed. Install a "
                f"tested version ({pin}), or set {OVERRIDE}=1 in the worker's environment to use "
                "this one at your own risk."
            )
    check_redis_for_kombu()


def check_redis_for_kombu() -> None:
    """Raise UnsupportedVersion for a redis-py that the installed kombu refuses to connect with."""
    kombu, redis = (sys.modules[name].__version__ for name in ("kombu", "redis"))
    newer_kombu, newer_redis = KOMBU_NEEDS_REDIS
    if _numbers(kombu) < _numbers(newer_kombu) or _numbers(redis) >= _numbers(newer_redis):
        return
    raise UnsupportedVersion(
        f"kombu {kombu} does not work with redis-py {redis}: it needs {newer_redis} or later. No "
        "job was claimed. Install a later redis-py (pip install "
        f"'redis>={newer_redis},<{TESTED['redis'][2]}'), or an earlier kombu and Celery (pip "
        f"install 'kombu<{newer_kombu}' 'celery<{newer_kombu}')."
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
