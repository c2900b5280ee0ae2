"""One frozen, validated value for all options, read from ``broker_transport_options``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import ConfigError

#: Seconds that a duration may have at most: ten years. Beyond 2**63 ms from now the server refuses.
LONGEST = 10 * 365 * 86400.0


class Config:
    """All options of celery_superfetch. Durations are seconds; ConfigError: one is impossible."""

    # No dataclass: a producer pays for the making of one whenever it starts.

    heartbeat_interval: float = 5.0  # seconds between two heartbeats of an owner
    #: Seconds of watched silence after which a still connected remote owner is dead.
    owner_ttl: float = 60.0
    reap_interval: float = 10.0  # seconds between full looks at the registry, by workers and beat
    full_sweep_interval: float = 3600.0  # seconds between scans for lists nobody registered
    #: A job is killed at this many strikes, the last its own (Sidekiq Pro's figure) ...
    strike_limit: int = 3
    #: ... within this many seconds of the first (72 h, likewise).
    strike_window: float = 72 * 3600.0
    #: Recoveries, strikes or not, after which a job goes on probation (RabbitMQ's delivery limit).
    recovery_limit: int = 20
    dead_limit: int = 10_000  # jobs the dead set holds at most (Sidekiq's figure)
    dead_ttl: float = 180 * 86400.0  # seconds a job stays there at most (180 days, likewise)
    claim_limit: int = 64  # jobs one claim takes at most, whatever the prefetch allows
    metrics_port: int = 0  # at which a worker serves metrics; 0: it does not
    metrics_host: str = "127.0.0.1"  # where it listens for it
    #: What a worker does with a job of a task that it does not know (docs/reference/options.md).
    unknown_tasks: str = "requeue"
    stuck_after: float | None = None  # seconds a job may run before it is told of; None: never
    #: Seconds a job may wait in a busy worker while another of its queue idles; None: for ever.
    reserved_timeout: float | None = None
    #: Name of the Celery app; ``install`` sets it. Jobs are killed only by their own app.
    app_name: str = ""
    global_keyprefix: str = ""  # kombu's option of the same name

    def __init__(self, **options: Any) -> None:
        vars(self).update({**DEFAULTS, **options})
        check(vars(self))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"options cannot be changed ({name!r})")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    @classmethod
    def from_options(cls, options: Mapping[str, Any], known: Iterable[str] = ()) -> Config:
        return cls(**own_options(options, known))


def own_options(options: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Those options that are ours; ConfigError: one is neither that nor ``known``."""
    valid = {*OPTIONS, *known}
    for name in options:
        if name not in valid:
            import difflib  # whoever makes no mistake need not wait for it

            nearest = difflib.get_close_matches(str(name), sorted(valid), n=1, cutoff=0.6)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise ConfigError(f"unknown option {name!r}{hint}")
    return {name: value for name, value in options.items() if name in OPTIONS}


def check(options: Mapping[str, Any]) -> None:
    """Refuse options of ours that are impossible, alone or together (ConfigError)."""
    for name, value in options.items():
        # A default may be 0, which turns something off.
        if value != DEFAULTS[name] and (wrong := _wrong_with(OPTIONS[name], value)):
            raise ConfigError(f"option {name!r} must be {wrong}, it is {value!r}")
        if name in CHOICES and value not in CHOICES[name]:
            choices = ", ".join(map(repr, CHOICES[name]))
            raise ConfigError(f"option {name!r} must be one of {choices}, it is {value!r}")
    interval, ttl = options.get("heartbeat_interval", 0), options.get("owner_ttl", math.inf)
    if ttl < 2 * interval:
        raise ConfigError(
            f"option 'owner_ttl' ({ttl:g} s) must be at least twice 'heartbeat_interval' "
            f"({interval:g} s): one late heartbeat would already count as death"
        )


def _wrong_with(kind: str, value: Any) -> str:
    """What an option of this type must be, where ``value`` is something else, and no default."""
    if kind == "str":
        return "" if isinstance(value, str) else "a string"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "a number"
    if not math.isfinite(value) or value <= 0:
        return "greater than 0 and finite"
    if kind == "float" and value > LONGEST:
        return f"at most {LONGEST:.0f} s (ten years)"
    return "a whole number" if kind == "int" and value != int(value) else ""


CHOICES = {"unknown_tasks": ("requeue", "dead", "discard")}  # what is not just any text
#: Names of all options -> the names of their types.
OPTIONS = {name: kind.partition(" | ")[0] for name, kind in Config.__annotations__.items()}
DEFAULTS = {name: getattr(Config, name) for name in OPTIONS}
