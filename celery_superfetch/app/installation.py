"""``install(app)``: everything a Celery app needs. Other apps in the process keep stock's behavior;
``docs/inside/process.md`` lists what a process has only once, so that no app can have its own.

The user's module calls ``install`` in each process of the app: worker, beat, producer, command.
``install`` itself, Celery's signals after the app's settings were read, and ``worker/bootsteps.py``
when a worker is made call ``configure``. A pool process that is spawned instead of forked (Celery's
``worker_pool_start_method``) gets a pickled copy of the app; ``install_in_copy`` installs there.
All of it is in memory, so a death loses nothing: the next process installs again.

Foreign names:

celery utils.
    find out whether the user has set an option: collections:ConfigurationView._to_keys(key)
    be the first receiver: dispatch.signal:Signal.receivers
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from celery import Celery
from kombu.utils.imports import symbol_by_name

from ..errors import ConfigError
from ..model.config import INTERNAL_TASK_PREFIXES, check, own_options
from ..model.early_tasks import has_copied_early_ack
from ..signals import job_recovering
from ..transport.transport import KNOWN_OPTIONS
from .broker import AMQP, config_of, set_first, set_options
from .drill import add_drill_task
from .guard import guard_of
from .notice import add_announce_task
from .reap_task import add_reap_task
from .result_backends import patch_backends, patch_backends_of_tasks
from .schedule import scheduled

if TYPE_CHECKING:  # so that editors and type checkers find a misspelt option
    from typing_extensions import TypedDict, Unpack

    from ..model.config import Jobs, Recoveries, Seconds, Stops, Strikes, Text

    # Options of kombu that are not here can be set in broker_transport_options.
    class Kombu(TypedDict, total=False):
        health_check_interval: float
        master_name: str
        max_connections: int
        priority_steps: list[int]
        queue_order_strategy: str
        sep: str
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
CELERY_DEFAULTS = {
    "task_acks_late": ("CELERY_ACKS_LATE", True),
    "task_reject_on_worker_lost": ("CELERY_REJECT_ON_WORKER_LOST", True),
    "worker_enable_prefetch_count_reduction": ("CELERYD_ENABLE_PREFETCH_COUNT_REDUCTION", False),
}


def install(app: App, **options: Unpack[Options]) -> App:
    """Make ``app`` fetch reliably, and return it. May be called before or after the app is
    configured, but before its tasks are used. May be called again: later options win.

    Arguments:
        app: a Celery app whose broker is Redis or Valkey.
        options: of this package, and kombu's. They are merged into ``broker_transport_options``.

    Raises:
        ConfigError: an option is misspelt or impossible, or a task has already copied Celery's
            default ``acks_late=False``; the app was left as it was.
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


def install_in_copy(app: Celery) -> None:
    """Install into a copy of an app that is just being unpickled. Its settings have the options if
    the app was configured before it was pickled.

    Celery calls this in the copy's constructor: it is one of the app's fixups, which are pickled as
    names. Without it a spawned pool process would run its tasks as stock Celery does, so a chord
    whose last part is killed would wait for ever. An app whose class has its own
    ``__reduce_args__`` pickles no fixups: its copies stay stock.
    """
    # The app's signals are made after the fixups, and before the call of ``on_init``.
    on_init = app.on_init

    def init() -> None:
        del app.on_init
        on_init()
        install(app)

    app.on_init = init


def _check_tasks(app: Celery) -> None:
    """Raise ConfigError if a task was used, or registered by hand, before ``install``: it has
    copied ``acks_late=False`` from Celery's defaults, and so acks a job before it runs. If the user
    has set ``task_acks_late``, the task has copied that, and there is no error."""
    early = [
        name
        for name, task in vars(app)["_tasks"].items()
        if has_copied_early_ack(task) and not name.startswith(INTERNAL_TASK_PREFIXES)
    ]
    if not early:
        return
    keys = {CELERY_DEFAULTS["task_acks_late"][0], *app.conf._to_keys("task_acks_late")}
    if not any(keys & {*layer} for layer in app.conf.maps[:-1]):
        raise ConfigError(
            f"install(app) was called too late for {', '.join(sorted(early)[:5])}: these tasks "
            "were used or registered before it and have acks_late=False from Celery's defaults, "
            "so a killed worker would lose their jobs. Call install(app) right after the app is "
            "created."
        )


def _add(app: Celery) -> None:
    """Add the connections, bootsteps, tasks, patches and receivers to an app, once."""
    base_class = symbol_by_name(app.amqp_cls)
    # A name where that is possible: pickling an app pickles ``amqp_cls``.
    app.amqp_cls = f"{AMQP.__module__}:{AMQP.__name__}"
    if not issubclass(AMQP, base_class):
        app.amqp_cls = type(base_class.__name__, (AMQP, base_class), {})
    if "amqp" in app.__dict__:  # it was made already, with the function that publishes unwrapped
        app.amqp.__class__ = symbol_by_name(app.amqp_cls)
        vars(app.amqp).pop("send_task_message", None)
    app.fixups = {*app.fixups, f"{__name__}:{install_in_copy.__name__}"}
    # Celery loads these by name, so that only workers load what they need.
    app.steps["worker"].add("celery_superfetch.worker.bootsteps:Maintenance")
    app.steps["consumer"].add("celery_superfetch.worker.bootsteps:Guarded")
    add_reap_task(app)
    add_announce_task(app)
    add_drill_task(app)
    patch_backends(app)
    job_recovering.connect(guard_of(app), sender=app, weak=False)
    # The app may be configured later, and again; a module may set more after that.
    _connect_first(app.on_after_configure, configure)
    app.on_after_finalize.connect(configure)
    app.on_after_finalize.connect(patch_backends_of_tasks)


def _connect_first(signal: Any, receiver: Any) -> None:
    """Connect a receiver before all others: a receiver of the user's may use a task, as it does for
    a periodic task, and the task would copy settings without this package's defaults."""
    signal.connect(receiver)
    signal.receivers.insert(0, signal.receivers.pop())


def configure(sender: Celery, **_: Any) -> None:
    """Set the options of ``install``, the defaults, and beat's entry; also again, since the user's
    settings may have been read again and have replaced them."""
    conf = sender.conf
    set_options(sender)
    defaults = conf.maps[-1]  # Celery's defaults; a setting of the user is in a map before it
    for name, (old, value) in CELERY_DEFAULTS.items():
        defaults[old if old in defaults else name] = value
    try:
        interval = config_of(sender).reap_interval
    except ConfigError:
        return  # Celery only logs the error of a receiver; a worker refuses to start with it
    set_first(conf, "beat_schedule", scheduled(sender, interval))
