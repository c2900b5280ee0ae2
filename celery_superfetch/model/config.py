"""The options of this package (``Config``), read from ``broker_transport_options`` and checked.

``install`` checks them when it is called; ``app.broker.config_of`` and the transport read them, in
each process. A frozen value, without I/O.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..errors import ConfigError

#: Seconds that a duration may have at most: ten years. Beyond 2**63 ms from now the server refuses.
LONGEST = 10 * 365 * 86400.0

#: Removed option -> what does its work now.
REMOVED_OPTIONS = {
    "metrics_host": "run `celery superfetch metrics --host`, one process for each database",
    "metrics_port": "run `celery superfetch metrics --port`, one process for each database",
    "stuck_after": "run `celery superfetch check`, which reports jobs that run for hours",
}

#: Likeness (difflib's ratio) from which on an unknown option counts as one that is misspelt. No
#: option of another broker is so like one of these.
NEAR = 0.85

REAP_TASK = "celery_superfetch.reap"  # the task of a pass, and its entry in ``beat_schedule``
REAP_ENTRY = "superfetch-reap"
ANNOUNCE_TASK = "celery_superfetch.announce"  # the task of a notice
DRILL_HEADER = "superfetch_drill"  # of a job that `superfetch drill` has sent
DRILL_MAX_S = 3600.0  # for which a job of a drill sleeps at most
DRILL_TASK = "celery_superfetch.drill"  # the task of a drill's jobs
NOT_THE_USERS = ("celery.", "celery_superfetch.")  # tasks whose names begin so

#: The header of a notice that names a dead job, and what stands there until a script knows which.
DEAD_ID_HEADER, DEAD_ID = "superfetch_dead_id", "@dead_id@"

#: What values are counted in: an option's annotation names one of these, and so do errors and docs.
Seconds: TypeAlias = float
Strikes: TypeAlias = int
Recoveries: TypeAlias = int
Stops: TypeAlias = int
Jobs: TypeAlias = int
Text: TypeAlias = str


@dataclass(frozen=True)
class Config:
    """All options of celery_superfetch, validated and frozen.

    Raises:
        ConfigError: a value is impossible, alone or beside another.
    """

    # The text below each option is its line in docs/reference/options.md, which is made of it.

    heartbeat_interval: Seconds = 5.0
    """The time between two heartbeats of an owner. An owner on another host is dead after two
    missed heartbeats (10 s), if its connections are gone too."""

    owner_ttl: Seconds = 60.0
    """An owner that is silent for so long is dead, even if the server still has its connections.
    A worker whose event loop hangs for so long calls itself hung. Choose it longer than any pause
    of a live worker, and at least twice `heartbeat_interval`."""

    reap_interval: Seconds = 10.0
    """The time between two passes over all owners, whoever makes them. It is also the schedule of
    the reap task in beat."""

    strike_limit: Strikes = 3
    """A job is killed at this many strikes, if the last one is certainly its own. One strike
    before, it goes on probation. A task may have its own limit. The figure is Sidekiq Pro's."""

    strike_window: Seconds = 72 * 3600.0
    """72 hours. So long after its first recovery, a job's counters are forgotten. The figure is
    Sidekiq Pro's."""

    recovery_limit: Recoveries = 20
    """A job goes on probation at this many recoveries, with strikes or without; stops do not count.
    Recoveries alone kill no job. The figure is RabbitMQ's delivery limit."""

    stop_limit: Stops | None = 50
    """A job is killed at this many stops: runs that were cut short because their worker was
    stopping. A deploy is one stop, and no strike; a job that stops its own worker looks the same.
    From the tenth stop on, the log, `status` and `doctor` name the job. A task may have its own
    limit. None: never."""

    dead_limit: Jobs = 10_000
    """The dead set keeps at most so many jobs of this app. The oldest are dropped, counted
    (`dead_dropped`) and logged. If you lower the limit, each pass drops 100 jobs at most. Messages
    that never ran count apart: as many, and 64 MB; unparseable items, too: 1,000, and 16 MB. The
    figure is Sidekiq's."""

    dead_ttl: Seconds = 180 * 86400.0
    """180 days. Older jobs of this app, and older unparseable items, are dropped from the dead
    set, counted and logged. The figure is Sidekiq's."""

    claim_limit: Jobs = 64
    """One claim takes at most so many jobs, whatever the prefetch count allows. This bounds the
    size of a reply and the time that a script takes."""

    unknown_tasks: Text = "requeue"
    """What a worker does with a job of a task that it does not know, or that Celery cannot decode
    or calls invalid. `"discard"` is Celery's own way."""

    accepted_findings: Text = ""
    """Codes of warnings, with commas between them, that you accept: `status`, `check`, `doctor`,
    the metrics and the page then show them as notes. `"eviction"`, for example, where a managed
    service evicts what expires and cannot be told otherwise. What is critical stays critical."""

    app_name: Text = ""
    """The name of the Celery app (`app.main`): only its own app kills a job. Do not set it,
    because `install()` overwrites it."""

    global_keyprefix: Text = ""
    """kombu's option. It stands before every key, also before those of this package. On a cluster
    it needs a name in braces."""

    def __post_init__(self) -> None:
        check(vars(self))

    @classmethod
    def from_options(cls, options: Mapping[str, Any], known: Iterable[str] = ()) -> Config:
        return cls(**own_options(options, known))


def own_options(options: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Return the options of this package.

    Raises:
        ConfigError: an option was removed, or has nearly the name of one of these or of one that is
            ``known``, or is kombu's and leaves a queue without a list.
    """
    if "priority_steps" in options:
        _check_priority_steps(options["priority_steps"])
    valid = {*OPTIONS, *known}
    for name in options:
        if name in REMOVED_OPTIONS:
            raise ConfigError(f"unknown option {name!r}; instead, {REMOVED_OPTIONS[name]}")
        if name not in valid:
            import difflib  # whoever makes no mistake need not wait for it

            if nearest := difflib.get_close_matches(str(name), sorted(valid), n=1, cutoff=NEAR):
                raise ConfigError(f"unknown option {name!r}; did you mean {nearest[0]!r}?")
    return {name: value for name, value in options.items() if name in OPTIONS}


def _check_priority_steps(steps: Any) -> None:
    """Refuse steps of which kombu makes no list: to publish would be an IndexError, and a worker
    would consume nothing without a word (ConfigError)."""
    is_list = isinstance(steps, (list, tuple, range))
    if not is_list or not steps or not all(type(step) is int for step in steps):
        raise ConfigError(
            "option 'priority_steps' must be a list of at least one whole number, such as "
            f"[0, 3, 6, 9], or [0] for queues without priorities, it is {steps!r}"
        )


def check(options: Mapping[str, Any]) -> None:
    """Refuse options of ours that are impossible, alone or together (ConfigError)."""
    for name, value in options.items():
        # A default may be None, which turns something off.
        if value != DEFAULTS[name] and (wrong := _wrong_with(name, value)):
            raise ConfigError(f"option {name!r} must be {wrong}, it is {value!r}")
    interval, ttl = options.get("heartbeat_interval", 0), options.get("owner_ttl", math.inf)
    if ttl < 2 * interval:
        raise ConfigError(
            f"option 'owner_ttl' ({ttl:g} s) must be at least twice 'heartbeat_interval' "
            f"({interval:g} s): one late heartbeat would already count as death"
        )


def _wrong_with(name: str, value: Any) -> str:
    """What this option must be, where ``value`` is something else, and no default."""
    kind, unit = OPTIONS[name], UNITS[name]
    if value is None and name in MAY_BE_NONE:
        return ""
    if name in CHOICES:
        return "" if value in CHOICES[name] else f"one of {', '.join(map(repr, CHOICES[name]))}"
    if kind == "str":
        return "" if isinstance(value, str) else "a string"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"a number ({unit})"
    if not math.isfinite(value) or value <= 0:
        return "greater than 0 and finite"
    if kind == "float" and value > LONGEST:
        return f"at most {LONGEST:.0f} s (ten years)"
    return f"a whole number ({unit})" if kind == "int" and value != int(value) else ""


CHOICES = {"unknown_tasks": ("requeue", "discard")}  # what is not just any text
_ALIASES = {name: kind.partition(" | ")[0] for name, kind in Config.__annotations__.items()}
#: Options that None turns off.
MAY_BE_NONE = {name for name, kind in Config.__annotations__.items() if kind.endswith("| None")}
#: Names of all options -> what they are counted in.
UNITS = {name: alias.lower() for name, alias in _ALIASES.items()}
#: Names of all options -> the names of their types.
OPTIONS: dict[str, str] = {name: globals()[alias].__name__ for name, alias in _ALIASES.items()}
DEFAULTS = {name: getattr(Config, name) for name in OPTIONS}
