"""``celery superfetch drill``: kills a worker, and prints when its jobs run again.

An operator calls it; ``console.drill`` has the parts. If the command dies, the drill's jobs end or
expire by themselves, and a worker that it has killed is recovered as any other.
"""

from __future__ import annotations

import click
from celery.bin.base import CeleryCommand

from ...cli.auditing import recorded
from ...cli.session import Seconds, Session, complain, in_session, quantity, warn
from ...model.arguments import printable
from ...model.config import DRILL_MAX_S
from ...model.humanize import command, number, span
from ...model.worker_process import NotAWorker, command_line_of, kill_tree
from ..drill import Drill, DrillRun, is_here

SLEEP = Seconds(5, DRILL_MAX_S)


@click.command(name="drill", cls=CeleryCommand)
@click.option("--queue", required=True, help="Send the jobs of the drill to this queue.")
@quantity("--jobs", click.IntRange(1, 1000), 4, "N", "Send this many jobs.")
@quantity("--seconds", SLEEP, 60, "SECONDS", "Let each job run for this long.")
@quantity("--wait", Seconds(1), 120, "SECONDS", "Wait at most this long for each step.")
@click.option(
    "--others-too",
    is_flag=True,
    help="Also kill a worker that runs other jobs, which are cut short.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@in_session
def drill(
    session: Session,
    queue: str,
    jobs: int,
    seconds: float,
    wait: float,
    others_too: bool,
    yes: bool,
) -> None:
    """Kill one of your workers, and measure when its jobs run again.

    The drill sends jobs that only sleep, kills a worker on this host that runs some of them (kill
    -9, with all its processes), and reports when each of them ran again. If only workers on other
    hosts run some, it asks you to kill one. It changes nothing else.
    """
    trial = Drill(session.app, session.inspector, queue, jobs, seconds)
    if not trial.consumers():
        raise click.ClickException(
            f"no worker consumes queue {queue!r}: no job was sent, and no worker was killed. "
            f"`{command()} status` lists the queues that have one"
        )
    trial.send(wait)
    if not trial.find_victim(wait):
        raise click.ClickException(
            f"no worker has started a job of the drill within {wait:g} s. Check whether one "
            f"consumes queue {queue!r} (`{command()} status`), has a free slot, and runs this "
            "version of celery_superfetch. No worker was killed; the jobs only sleep, and expire "
            "soon"
        )
    _spare(trial, others_too)
    if not trial.others():
        warn(
            f"no other worker consumes queue {queue!r}: the jobs run again once the killed "
            "worker was started again, by you or by its supervisor"
        )
    if _kill(session, trial, yes, others_too):
        complain(f"Killed {_title(trial)}. Waiting up to {wait:g} s for its jobs to run again ...")
    else:
        complain(f"Waiting up to {wait:g} s, counted from now, for its jobs to run again ...")
    complete = trial.wait_again(wait, lambda run: complain(f"  {_line(run)}"))
    runs = [vars(run) for run in trial.runs.values()]
    document = {"queue": queue, "jobs": runs, "complete": complete, "stock": trial.stock}
    session.say(document, lambda: session.tables.line(_verdict(trial)))
    if not complete:
        raise click.exceptions.Exit(1)


def _spare(trial: Drill, others_too: bool) -> None:
    """Refuse to kill a victim that also runs other jobs, unless the operator allows it."""
    innocents = trial.innocents()
    if innocents and not others_too:
        named = ", ".join(printable(f"{row['task']}[{row['id']}]") for row in innocents[:3])
        raise click.ClickException(
            f"{printable(trial.record.node)} also runs {number(len(innocents), 'other job')} "
            f"({named}), which would be cut short and run again. Name a queue that only the drill "
            "uses, wait, or add --others-too. No worker was killed"
        )


def _kill(session: Session, trial: Drill, yes: bool, others_too: bool) -> bool:
    """Kill the victim if this host and the server confirm it; otherwise ask the operator to do it.
    Return whether the drill did it."""
    jobs, text = number(_aimed(trial), "job"), _title(trial)
    pid = trial.record.process.pid
    if not is_here(trial.record):
        complain(f"{text} runs {jobs} of the drill on another host. Kill it: {_way_to_kill(pid)}.")
        _wait_for_operator(yes)
        return False
    try:
        process, is_confirmed = trial.target()
        if not is_confirmed:
            complain(
                f"{text} runs {jobs} of the drill. Redis does not confirm that this process is "
                "that worker: none of its sockets is a connection that CLIENT LIST has for it (a "
                "proxy, a Unix socket, or a forged record), so the drill does not kill it. If it "
                f"is the worker, run `kill -9 {pid}`. Its command line: "
                f"{printable(command_line_of(process))}"
            )
            _wait_for_operator(yes)
            return False
        if not yes:
            question = (
                f"Kill {text}, with all its processes? It runs {jobs} of the drill. "
                f"Its command line: {command_line_of(process)}. Kill it?"
            )
            click.confirm(printable(question), abort=True, err=True)
            _aimed(trial)  # some may have ended meanwhile
            _spare(trial, others_too)  # and jobs of yours may have started
        with recorded(session, "drill", text) as entry:
            kill_tree(process)
            entry.end(f"killed; it ran {jobs} of the drill")
        return True
    except ProcessLookupError:
        raise click.ClickException(f"{text} has ended meanwhile; no process was killed") from None
    except NotAWorker as exc:
        raise click.ClickException(
            printable(
                f"{text} is registered as the worker that runs {jobs} of the drill, but pid "
                f"{pid} on this host {exc}. No process was killed"
            )
        ) from None


def _way_to_kill(pid: int) -> str:
    """Return the command by which an operator kills a worker of another host."""
    container = "kill its container (docker kill), or delete its pod with --grace-period=0"
    if pid == 1:  # the kernel takes no SIGKILL for it from inside
        return f"it is the first process of its container, so {container}"
    return f"`kill -9 {pid}` (`ps -fp {pid}` shows what it is), or {container}"


def _wait_for_operator(yes: bool) -> None:
    if not yes:
        click.prompt("Press Enter when you kill it", default="", show_default=False, err=True)


def _title(trial: Drill) -> str:
    process = trial.record.process
    return printable(f"{trial.record.node} (pid {process.pid} on {process.host})")


def _aimed(trial: Drill) -> int:
    count = trial.aim()
    if not count:
        raise click.ClickException(
            "the jobs of the drill have ended meanwhile: let them run longer with --seconds. No "
            "worker was killed"
        )
    return count


def _line(run: DrillRun) -> str:
    return (
        f"Job {run.id} was recovered after {run.recovered:g} s, and ran again on "
        f"{printable(run.again)} after "
        f"{run.after:g} s."
    )


def _verdict(trial: Drill) -> str:
    runs = trial.runs.values()
    recovery_times = [run.recovered for run in runs if run.recovered is not None]
    times = [run.after for run in runs if run.after is not None]
    total, stock = len(runs), span(trial.stock)
    text = f"{len(recovery_times)} of {number(total, 'job')} recovered"
    if recovery_times:
        text += f", the last after {max(recovery_times):g} s"
    text += f"; {len(times)} ran again"
    if times:
        text += f", the first after {min(times):g} s and the last after {max(times):g} s"
    if ended := sum(run.ended for run in runs):
        text += (
            f". {number(ended, 'job')} ended in {trial.record.node}, which was not killed in time"
        )
    elif len(times) < total:
        text += (
            ". The others have not started again: they wait for a free slot, or for a worker of "
            f"their queue (see `{command()} status`)"
        )
    if ended == total:
        return f"{text}."
    return (
        f"{text}. Stock Celery would have lost them, or, with task_acks_late, redelivered them "
        f"after its visibility timeout of {stock}."
    )
