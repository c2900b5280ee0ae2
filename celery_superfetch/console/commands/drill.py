"""``celery superfetch drill``: kills a worker of its operator, and says when its jobs run again."""

from __future__ import annotations

import click
from celery.bin.base import CeleryCommand

from ...cli.session import Seconds, Session, complain, in_session, quantity, warn
from ...model.arguments import printable
from ...model.config import DRILL_MAX_S
from ...model.words import command, number, span
from ...model.worker_process import NotAWorker, command_line_of, kill_tree
from ..drill import Drill, Run, is_here

SLEEP = Seconds(5, DRILL_MAX_S)


@click.command(name="drill", cls=CeleryCommand)
@click.option("--queue", required=True, help="Send the jobs of the drill to this queue.")
@quantity("--jobs", click.IntRange(1, 1000), 4, "N", "Send this many jobs.")
@quantity("--seconds", SLEEP, 60, "SECONDS", "Let each job run for this long.")
@quantity("--wait", Seconds(1), 120, "SECONDS", "Wait this long for each thing to happen.")
@click.option("--others-too", is_flag=True, help="Also kill a worker that runs jobs of yours.")
@click.option("--yes", is_flag=True, help="Do not ask before the worker is killed.")
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
    """Kill one of your workers, and see when its jobs run again.

    It sends jobs that only sleep, kills a worker of this host that runs some of them (kill -9, with
    all its processes), and says when each of them ran again. Nothing else is changed.
    """
    trial = Drill(session.app, session.inspector, queue, jobs, seconds)
    if not trial.consumers():
        raise click.ClickException(
            f"no worker consumes queue {queue!r}: nothing was sent, and no worker was killed. "
            f"`{command()} status` shows the queues that have one"
        )
    trial.send(wait)
    if not trial.find_victim(wait):
        raise click.ClickException(
            f"no worker has started a job of the drill within {wait:g} s. See whether one serves "
            f"queue {queue!r} (`{command()} status`), has a free slot, and has this version "
            "of celery_superfetch. No worker was killed; the jobs only sleep, and expire soon"
        )
    _spare(trial, others_too)
    if not trial.others():
        warn(
            f"no other worker serves queue {queue!r}: the jobs run again once this one is started "
            "again, by you or by its supervisor"
        )
    if _kill(trial, yes, others_too):
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
    """Refuse to kill a victim that also runs jobs of the operator's, unless these may be cut."""
    innocents = trial.innocents()
    if innocents and not others_too:
        named = ", ".join(printable(f"{row['task']}[{row['id']}]") for row in innocents[:3])
        raise click.ClickException(
            f"{printable(trial.facts.node)} also runs {number(len(innocents), 'job')} of yours "
            f"({named}): they would be cut short, and run again. Name a queue that only the drill "
            "uses, wait, or say --others-too. No worker was killed"
        )


def _kill(trial: Drill, yes: bool, others_too: bool) -> bool:
    """Kill the victim if this host and the server confirm it, else have the operator do it; return
    whether the drill did."""
    jobs, text = number(_aimed(trial), "job"), _title(trial)
    pid = trial.facts.process.pid
    if not is_here(trial.facts):
        complain(f"{text} runs {jobs} of the drill, elsewhere. Kill it there: {_way_to_kill(pid)}.")
        _wait_for_operator(yes)
        return False
    try:
        process, is_confirmed = trial.target()
        if not is_confirmed:
            complain(
                f"{text} runs {jobs} of the drill. The server does not confirm that this process "
                "is that worker: none of its sockets is a connection that CLIENT LIST has for it "
                "(a proxy, a Unix socket, or a forged record), so the drill does not kill it. If "
                f"it is, kill it: `kill -9 {pid}`. It is: {printable(command_line_of(process))}"
            )
            _wait_for_operator(yes)
            return False
        if not yes:
            question = (
                f"Kill {text}, with all its processes? It runs {jobs} of the drill. "
                f"It is: {command_line_of(process)}. Kill it?"
            )
            click.confirm(printable(question), abort=True, err=True)
            _aimed(trial)  # some may have ended meanwhile
            _spare(trial, others_too)  # and jobs of yours may have started
        kill_tree(process)
        return True
    except ProcessLookupError:
        raise click.ClickException(f"{text} has ended meanwhile; nothing was killed") from None
    except NotAWorker as exc:
        raise click.ClickException(
            printable(
                f"{text} is registered as the worker that runs {jobs} of the drill, but pid {pid} "
                f"of this host {exc}. No process was killed"
            )
        ) from None


def _way_to_kill(pid: int) -> str:
    """Say how an operator kills a worker of another host."""
    container = "kill its container (docker kill), or delete its pod with --grace-period=0"
    if pid == 1:  # the kernel takes no SIGKILL for it from inside
        return f"it is the first process of its container, so {container}"
    return f"`kill -9 {pid}` (`ps -fp {pid}` says what it is), or {container}"


def _wait_for_operator(yes: bool) -> None:
    if not yes:
        click.prompt("Press Enter as you do", default="", show_default=False, err=True)


def _title(trial: Drill) -> str:
    process = trial.facts.process
    return printable(f"{trial.facts.node} (pid {process.pid} on {process.host})")


def _aimed(trial: Drill) -> int:
    count = trial.aim()
    if not count:
        raise click.ClickException(
            "the jobs of the drill have ended meanwhile: let them run longer, by --seconds. No "
            "worker was killed"
        )
    return count


def _line(run: Run) -> str:
    return (
        f"Job {run.id} was recovered after {run.recovered:g} s, and ran again on "
        f"{printable(run.again)} after "
        f"{run.after:g} s."
    )


def _verdict(trial: Drill) -> str:
    runs = trial.runs.values()
    back = [run.recovered for run in runs if run.recovered is not None]
    times = [run.after for run in runs if run.after is not None]
    total, stock = len(runs), span(trial.stock)
    text = f"{len(back)} of {number(total, 'job')} recovered"
    if back:
        text += f", the last after {max(back):g} s"
    text += f"; {len(times)} ran again"
    if times:
        text += f", the first after {min(times):g} s and the last after {max(times):g} s"
    if ended := sum(run.ended for run in runs):
        text += f". {number(ended, 'job')} ended in {trial.facts.node}: it was not killed in time"
    elif len(times) < total:
        text += (
            ". The others have not started again: they wait for a free slot, or for a worker of "
            f"their queue (`{command()} status` says which)"
        )
    if ended == total:
        return f"{text}."
    return (
        f"{text}. Stock Celery would have lost them; with task_acks_late, it would have given them "
        f"back after its visibility timeout of {stock}."
    )
