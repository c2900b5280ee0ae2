"""Checks the installed versions of billiard, Celery, kombu and redis-py.

A consumer relies on more of these projects than they document, and a change there could silently
lose a job. So a version that was not tested is refused, or at least logged.

A worker calls ``check_versions`` when it starts, ``Channel.fetch`` in each process before its first
claim. Nothing is claimed with a version that is refused, and nothing is sent to Redis: a death of
the process leaves nothing.
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

#: kombu from 5.7 on does not connect with redis-py before 6.1. pip may install the two together,
#: since kombu requires redis-py only in its extra ``redis``. This package does not require that
#: extra: its upper bounds exclude versions of redis-py that work, and that users may need.
KOMBU_REFUSES = ("5.7", "6.1")

ANYWAY = "SUPERFETCH_ANY_VERSION"  # environment variable: 1 allows versions that were not tested


@cache
def check_versions() -> None:
    """Raise UnsupportedVersion for a version that may lose jobs, unless the environment allows it,
    and for a kombu and a redis-py that do not work together. Log a warning for a version that is a
    little newer than the tested ones."""
    for project, (oldest, newest, end) in TESTED.items():
        if project not in sys.modules:  # without a worker, kombu consumes without Celery
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
                "%s, which is used all the same. If jobs go astray: pip install '%s==%s'",
                text,
                project,
                newest,
            )
        elif os.environ.get(ANYWAY) == "1":
            logger.warning(
                "%s. It is used, since %s is 1, and may lose jobs. %s", text, ANYWAY, pin
            )
        else:
            raise UnsupportedVersion(
                f"{text}, which may lose jobs in silence. Nothing was claimed. Install a version "
                f"that was tested ({pin}), or set {ANYWAY}=1 in the worker's environment to use "
                "this one at your own risk."
            )
    check_redis_for_kombu()


def check_redis_for_kombu() -> None:
    """Raise UnsupportedVersion for a redis-py that the installed kombu refuses to connect with."""
    kombu, redis = (sys.modules[name].__version__ for name in ("kombu", "redis"))
    newer_kombu, newer_redis = KOMBU_REFUSES
    if _numbers(kombu) < _numbers(newer_kombu) or _numbers(redis) >= _numbers(newer_redis):
        return
    raise UnsupportedVersion(
        f"kombu {kombu} does not connect with redis-py {redis}: it needs {newer_redis} or later. "
        "Nothing was claimed. Install a later redis-py (pip install "
        f"'redis>={newer_redis},<{TESTED['redis'][2]}'), or an earlier kombu with its Celery "
        f"(pip install 'kombu<{newer_kombu}' 'celery<{newer_kombu}')."
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
