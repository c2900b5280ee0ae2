"""The options of this package (``Config``), read from ``broker_transport_options`` and checked; and
the names of its tasks and headers, which several packages use.

``install`` checks the options when it is called; ``app.broker.config_of`` and the transport read
them, in each process. A task's own limit is checked by ``check``, too (``app/guard.py``). A frozen
value, without I/O.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..errors import ConfigError

OPTIONS = "broker_transport_options"  # the setting that has all options; errors begin with it

#: Seconds that a duration may have at most: ten years. Beyond 2**63 ms from now the server refuses.
DURATION_MAX_S = 10 * 365 * 86400.0

#: Removed option -> the replacement, for its error; ``{command}``: ``humanize.command``.
REMOVED_OPTIONS = {
    "metrics_host": "run `{command} metrics --host`, one process for each database",
    "metrics_port": "run `{command} metrics --port`, one process for each database",
    "stuck_after": "run `{command} check`, which reports long-running jobs",
}

#: Ratio of difflib from which on an unknown option is reported as a misspelt one. No real option of
#: another transport comes so near to an option of this package.
LIKENESS_MIN = 0.85

#: The task that makes one pass of the reaper (it recovers the jobs of dead workers), and its entry
#: in ``beat_schedule``.
REAP_TASK = "celery_superfetch.reap"
REAP_ENTRY = "superfetch-reap"
#: The task of a notice: the job that informs the caller of a dead-lettered job.
ANNOUNCE_TASK = "celery_superfetch.announce"
DRILL_HEADER = "superfetch_drill"  # header that marks a job sent by `superfetch drill`
DRILL_MAX_S = 3600.0  # longest sleep of a job of `superfetch drill`
DRILL_TASK = "celery_superfetch.drill"  # the task of these jobs
INTERNAL_TASK_PREFIXES = ("celery.", "celery_superfetch.")  # tasks whose names begin so

#: The header of a notice that names the dead job, and the placeholder that ``kill.lua`` replaces by
#: the job's id in the dead set.
DEAD_ID_HEADER, DEAD_ID = "superfetch_dead_id", "@dead_id@"

#: Units of options: an option's annotation names one of these, and so do errors and docs.
Seconds: TypeAlias = float
Strikes: TypeAlias = int
Recoveries: TypeAlias = int
Stops: TypeAlias = int
Jobs: TypeAlias = int
Text: TypeAlias = str
Priorities: TypeAlias = Sequence[int]


@dataclass(frozen=True)
class Config:
    """All options of celery_superfetch, validated and frozen.

    Raises:
        ConfigError: a value is impossible, alone or beside another.
    """

    # The text below each option is its line in docs/reference/options.md, which is made of it.

    heartbeat_interval: Seconds = 5.0
    """The time between two heartbeats of a worker. A worker on another host is declared dead after
    two missed heartbeats (10 s), if its connections are gone, too."""

    owner_ttl: Seconds = 60.0
    """A worker that sends no heartbeat for this time is declared dead, even if the server still has
    its connections. A worker whose event loop hangs for this time reports itself hung. Choose a
    time longer than any pause of a live worker, and at least twice `heartbeat_interval`."""

    reap_interval: Seconds = 10.0
    """The time between two reap passes over all workers. It is also the schedule of the reap task
    in beat."""

    strike_limit: Strikes = 3
    """A job is moved to the dead set at this many strikes, if the last one is exact. If a worker
    has died while it ran the job, the job goes on probation before that last strike. A task may
    have its own limit, `superfetch_strike_limit` (None: never). The figure is Sidekiq Pro's."""

    strike_window: Seconds = 72 * 3600.0
    """The time from a job's first recovery or requeue until its counters are forgotten, by default
    72 hours. The figure is Sidekiq Pro's."""

    recovery_limit: Recoveries = 20
    """A job goes on probation at this many recoveries, with strikes or without; stops do not count.
    Recoveries alone move no job to the dead set. The figure is RabbitMQ's delivery limit."""

    stop_limit: Stops | None = 50
    """A job is moved to the dead set at this many stops: runs cut short because their worker was
    stopping. A deploy gives one stop, no strike; so does a job that stops its own worker.
    From the tenth stop on, the log, `status` and `doctor` name it. A task may have its own limit,
    `superfetch_stop_limit`. None: never."""

    dead_limit: Jobs = 10_000
    """The dead set keeps at most this many jobs of this app. The oldest are deleted, counted
    (`dead_dropped`) and logged. If you lower the limit, each pass deletes 100 jobs at most. Two
    kinds have separate limits: messages that never ran (the same number, and 64 MB), and
    unparseable items (1,000, and 16 MB). The figure is Sidekiq's."""

    dead_ttl: Seconds = 180 * 86400.0
    """180 days. Older jobs of this app, and older unparseable items, are dropped from the dead
    set, counted and logged. The figure is Sidekiq's."""

    claim_limit: Jobs = 64
    """One claim takes at most this many jobs, whatever the prefetch count allows. This bounds the
    size of a reply and the time that a script takes."""

    unknown_tasks: Text = "requeue"
    """`"requeue"`: a job whose task a worker does not know, or which Celery cannot decode or calls
    invalid, is tried again later. If all workers of the queue have the same tasks, or the job was
    requeued 40 times, it is moved to the dead set. `"discard"`: such a job is dropped, as Celery
    does."""

    accepted_findings: Text = ""
    """Codes of warnings, with commas between them, that you accept: `status`, `check`, `doctor`,
    the metrics and the page then show them as notes. For example `"eviction"`, if a managed service
    evicts keys that expire, and you cannot change that. What is critical stays critical."""

    app_name: Text = ""
    """The name of the Celery app (`app.main`). A worker moves a job of another app to the dead set
    only if the job cannot be parsed. Do not set this option: `install()` overwrites it."""

    global_keyprefix: Text = ""
    """kombu's option. It stands before every key, also before those of this package. On a cluster
    it needs a name in braces."""

    sep: Text = "\x06\x16"
    """kombu's option. It stands between the name of a queue and a priority in the name of a list.
    Workers and producers of one queue need the same. No queue may end with it and one of
    `priority_steps`."""

    priority_steps: Priorities = (0, 3, 6, 9)
    """kombu's option. A queue has a list in Redis for each of these priorities; another priority is
    rounded down to one of them. Workers and producers of one queue need the same. `[0]`: no
    priorities."""

    def __post_init__(self) -> None:
        check(vars(self))
        # As a tuple: equal options have to be equal values, which can be hashed.
        object.__setattr__(self, "priority_steps", tuple(self.priority_steps))

    @classmethod
    def from_options(cls, options: Mapping[str, Any], known: Iterable[str] = ()) -> Config:
        return cls(**own_options(options, known))


def own_options(options: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Return the options of this package.

    Raises:
        ConfigError: an option was removed, or its name is nearly that of an option of this package
            or of one that is ``known`` (kombu's).
    """
    valid = {*TYPE_BY_OPTION, *known}
    for name in options:
        if name in REMOVED_OPTIONS:
            from .humanize import command  # not loaded for a correct configuration

            raise ConfigError(
                f"{OPTIONS} has an unknown option {name!r}: it was removed. Instead, "
                f"{REMOVED_OPTIONS[name].format(command=command())}"
            )
        if name not in valid:
            import difflib  # not loaded for a correct configuration

            if nearest := difflib.get_close_matches(
                str(name), sorted(valid), n=1, cutoff=LIKENESS_MIN
            ):
                raise ConfigError(
                    f"{OPTIONS} has an unknown option {name!r}: did you mean {nearest[0]!r}?"
                )
    return {name: value for name, value in options.items() if name in TYPE_BY_OPTION}


def check(options: Mapping[str, Any]) -> None:
    """Raise ConfigError for options of this package that are impossible, alone or together. An
    option that is not given is not checked against the others."""
    for name, value in options.items():
        # Most values are defaults, which are valid.
        if value != DEFAULTS[name] and (wrong := _wrong_with(name, value)):
            raise ConfigError(f"{OPTIONS}: option {name!r} must be {wrong}, got {value!r}")
    interval, ttl = options.get("heartbeat_interval", 0), options.get("owner_ttl", math.inf)
    if ttl < 2 * interval:
        raise ConfigError(
            f"{OPTIONS}: option 'owner_ttl' must be at least twice 'heartbeat_interval', got "
            f"{ttl:g} s and {interval:g} s: with less, one late heartbeat would mark a worker dead"
        )


def _wrong_with(name: str, value: Any) -> str:
    """Return the rule that ``value``, which is not the default, breaks; empty if it breaks none."""
    kind, unit = TYPE_BY_OPTION[name], UNIT_BY_OPTION[name]
    if value is None and name in MAY_BE_NONE:
        return ""
    if name in CHOICES:
        return "" if value in CHOICES[name] else f"one of {', '.join(map(repr, CHOICES[name]))}"
    if kind == "Sequence":
        return "" if _has_lists(value) else PRIORITIES_RULE
    if name == "sep" and value == "":
        return "a string of at least one character"
    if kind == "str":
        return "" if isinstance(value, str) else "a string"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"a number of {unit}"
    if not math.isfinite(value) or value <= 0:
        return "a finite number greater than 0"
    if kind == "float" and value > DURATION_MAX_S:
        return f"at most {DURATION_MAX_S:.0f} s (ten years)"
    return f"a whole number of {unit}" if kind == "int" and value != int(value) else ""


def _has_lists(steps: Any) -> bool:
    """Return whether kombu makes a list of each priority step. Without a list, publishing would
    raise IndexError, and a worker would silently consume nothing."""
    is_list = isinstance(steps, (list, tuple, range))
    return is_list and bool(steps) and all(type(step) is int for step in steps)


PRIORITIES_RULE = (
    "a list of at least one whole number, such as [0, 3, 6, 9], or [0] for queues without "
    "priorities"
)
CHOICES = {"unknown_tasks": ("requeue", "discard")}  # options with a fixed set of texts
#: Names of all options -> their annotations, which are strings (``from __future__``) and name one
#: of the units above.
_ALIASES = {name: kind.partition(" | ")[0] for name, kind in Config.__annotations__.items()}
#: Options that None turns off.
MAY_BE_NONE = {name for name, kind in Config.__annotations__.items() if kind.endswith("| None")}
#: Names of all options -> their units.
UNIT_BY_OPTION = {name: alias.lower() for name, alias in _ALIASES.items()}
#: Names of all options -> the names of their types.
TYPE_BY_OPTION: dict[str, str] = {
    name: globals()[alias].__name__ for name, alias in _ALIASES.items()
}
DEFAULTS = {name: getattr(Config, name) for name in TYPE_BY_OPTION}
