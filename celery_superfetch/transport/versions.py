"""Which versions jobs are trusted to: a consumer relies on more of these projects than they
document, and what changes there could lose a job in silence. ``Channel.fetch`` calls
``check_versions`` before the first claim; nothing is claimed with a version that is refused."""

from __future__ import annotations

import logging
import os
import re
import sys
from functools import cache

from ..errors import UnsupportedVersion
from ..model.log_text import one_line_each

logger = one_line_each(logging.getLogger(__name__))

#: Of each project the oldest and the newest version that the tests ran with, and the first one that
#: is refused. ``setup.cfg`` asks for the same.
TESTED = {
    "billiard": ("4.2.1", "4.3.2", "4.4"),
    "celery": ("5.5", "5.7.0", "5.8"),
    "kombu": ("5.5", "5.7.0", "5.8"),
    "redis": ("5.0", "8.1.0", "9"),
}

#: The first kombu that refuses an older redis-py when it connects, and that redis-py. pip installs
#: the two together, since kombu states its redis-py in an extra alone. We do not ask for the extra:
#: its upper bounds exclude versions that work, and with them applications that need these.
KOMBU_REFUSES = ("5.7", "6.1")

ANYWAY = "SUPERFETCH_ANY_VERSION"


@cache
def check_versions() -> None:
    """Raise UnsupportedVersion for one that may lose jobs, unless the environment allows it; and
    for two that do not work together."""
    for project, (oldest, newest, end) in TESTED.items():
        if project not in sys.modules:  # a consumer that is no worker needs no Celery
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
