"""``install(app)``: everything a Celery app needs. Other apps in the process keep stock's behavior;
``docs/inside/process.md`` lists what a process has only once, so that no app can have its own.

The user's module calls ``install`` in each process of the app: worker, beat, producer, command.
Celery's signals call ``configure`` whenever the app's settings were read, and ``worker/steps.py``
when a worker is made. All of it is in memory, so a death loses nothing: the next process installs
again.

Foreign names:

celery utils.
    set an app's defaults: collections:ConfigurationView._to_keys(key)
    be the first receiver: dispatch.signal:Signal.receivers
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from celery import Celery
from kombu.utils.imports import symbol_by_name

from ..errors import ConfigError
from ..model.config import NOT_THE_USERS, check, own_options
from ..model.early_tasks import has_copied_early_ack
from ..signals import job_recovering
from ..transport.transport import KNOWN_OPTIONS
from .broker import AMQP, config_of
from .drill import add_drill_task
from .guard import guard_of
from .notice import add_announce_task
from .reap_task import add_reap_task
from .result_backends import patch_backends, patch_backends_of_tasks
from .schedule import scheduled

if TYPE_CHECKING:  # what editors and type checkers know: a mistyped name is a mistake
    from typing_extensions import TypedDict, Unpack

    from ..model.config import Jobs, Recoveries, Seconds, Stops, Strikes, Text

    class Kombu(TypedDict, total=False):  # any other can be in broker_transport_options
        health_check_interval: float
        master_name: str
        max_connections: int
        priority_steps: list[int]
        queue_order_strategy: str
        socket_connect_timeout: float
        socket_timeout: float
        visibility_timeout: float

    class Options(Kombu, total=False):
        heartbeat_interval: Seconds
        owner_ttl: Seconds
        reap_interval: Seconds
        strike_limit: Strikes
        stop_limit: Stops | None
        strike_window: Seconds
        recovery_limit: Recoveries
        dead_limit: Jobs
        dead_ttl: Seconds
        claim_limit: Jobs
        unknown_tasks: Text
        accepted_findings: Text
        global_keyprefix: Text


App = TypeVar("App", bound=Celery)

#: Settings that get another default, each with its old name. Without them Celery acks a job before
#: it runs, and drops it when its pool process is lost; and after a lost connection it lowers the
#: prefetch limit by the jobs that still run, which this package counts as prefetched already.
DEFAULTS = {
    "task_acks_late": ("CELERY_ACKS_LATE", True),
    "task_reject_on_worker_lost": ("CELERY_REJECT_ON_WORKER_LOST", True),
    "worker_enable_prefetch_count_reduction": ("CELERYD_ENABLE_PREFETCH_COUNT_REDUCTION", False),
}


def install(app: App, **options: Unpack[Options]) -> App:
    """Make ``app`` fetch reliably, and return it; before or after it is configured, but before its
    tasks are used, and more than once (later options win).

    Arguments:
        app: a Celery app whose broker is Redis or Valkey.
        options: of this package, and kombu's. They are merged into ``broker_transport_options``.

    Raises:
        ConfigError: an option is misspelt or impossible, or a task has taken the app's settings
            already; the app was left as it was.
    """
    installed = getattr(app, "_superfetch", None)
    all_options = {**(installed or {}), **options}
    check(own_options(all_options, KNOWN_OPTIONS))
    if installed is None:
        _check_tasks(app)
    app._superfetch = all_options
    if installed is None:
        _add(app)
    if app.configured:
        configure(app)
    return app


def _check_tasks(app: Celery) -> None:
    """Raise ConfigError if a task was used, or registered by hand, before ``install``: it has
    copied from Celery's defaults that it acks a job before it runs."""
    early = [
        name
        for name, task in vars(app)["_tasks"].items()
        if has_copied_early_ack(task) and not name.startswith(NOT_THE_USERS)
    ]
    if not early:
        return
    keys = {DEFAULTS["task_acks_late"][0], *app.conf._to_keys("task_acks_late")}
    if not any(keys & {*layer} for layer in app.conf.maps[:-1]):
        raise ConfigError(
            f"install(app) comes too late for {', '.join(sorted(early)[:5])}: tasks that were used "
            "or registered before have acks_late=False from Celery's defaults, and a killed worker "
            "would lose their jobs. Call install(app) right after the app is made."
        )


def _add(app: Celery) -> None:
    """Add the connections, bootsteps, tasks, patches and receivers to an app, once."""
    own = symbol_by_name(app.amqp_cls)
    # By name where that is possible: an app is pickled with it.
    app.amqp_cls = f"{AMQP.__module__}:{AMQP.__name__}"
    if not issubclass(AMQP, own):
        app.amqp_cls = type(own.__name__, (AMQP, own), {})
    if "amqp" in app.__dict__:
        app.amqp.__class__ = symbol_by_name(app.amqp_cls)
        vars(app.amqp).pop("send_task_message", None)
    # Celery loads these by name, so that only workers load what they need.
    app.steps["worker"].add("celery_superfetch.worker.steps:Maintenance")
    app.steps["consumer"].add("celery_superfetch.worker.steps:Guarded")
    add_reap_task(app)
    add_announce_task(app)
    add_drill_task(app)
    patch_backends(app)
    job_recovering.connect(guard_of(app), sender=app, weak=False)
    # Configuration may come later, and again; a module may set more after it was read.
    _connect_first(app.on_after_configure, configure)
    app.on_after_finalize.connect(configure)
    app.on_after_finalize.connect(patch_backends_of_tasks)


def _connect_first(signal: Any, receiver: Any) -> None:
    """Connect a receiver before all others: one of the user's may use a task, as it does for a
    periodic task, and the task would copy settings without our defaults."""
    signal.connect(receiver)
    signal.receivers.insert(0, signal.receivers.pop())


def configure(sender: Celery, **_: Any) -> None:
    """Set the options of ``install``, the defaults, and beat's entry; also again, since the user's
    settings may have been read anew and have replaced them."""
    conf = sender.conf
    given = {**(conf.broker_transport_options or {}), **sender._superfetch}
    _set(conf, "broker_transport_options", {**given, "app_name": sender.main or ""})
    defaults = conf.maps[-1]  # Celery's own for this app: whatever the user set is found before
    for name, (old, value) in DEFAULTS.items():
        defaults[old if old in defaults else name] = value
    try:
        interval = config_of(sender).reap_interval
    except ConfigError:
        return  # a receiver's error would be swallowed; the worker's start refuses it
    _set(conf, "beat_schedule", scheduled(sender, interval))


def _set(conf: Any, name: str, value: Any) -> None:
    """Set a setting where it is found first: with a namespace, Celery before 5.7 reads the
    prefixed name before the plain one, whichever map has it."""
    conf.maps[0].update(dict.fromkeys((conf._to_keys(name)[0], name), value))
