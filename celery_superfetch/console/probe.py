"""``superfetch-check``, and ``celery -A app superfetch check``: is all well? For probes and Nagios.

Without an app it loads no Celery and no module of yours: a probe runs every few seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from redis.exceptions import RedisError

from ..errors import SuperfetchError
from ..inspector import Inspector, advice_for
from ..model.arguments import printable_lines
from ..model.process import ProcessImage
from ..model.verdict import Reason
from ..model.words import span
from .finding import Finding
from .health import findings, summary
from .overview import overview_of, state_of

if TYPE_CHECKING:
    from celery import Celery

WORDS = "OK", "WARNING", "CRITICAL"

#: Findings named in the line; the document has them all.
NAMED = 3

#: Seconds that an answer may take at most.
TIMEOUT_MAX_S = 3600


class Answer(NamedTuple):
    """What was found, and in a few words what was looked at."""

    findings: list[Finding]
    summary: list[str]


def main(argv: Sequence[str] | None = None, app: Celery | None = None) -> int:
    """Print one line, or one document; returns the exit code.

    Arguments:
        argv: words of the command line; None for those of the process.
        app: whose broker is asked; None: ``--broker`` names it.
    """
    options = _parser(app).parse_args(argv)
    answers, why = list[Answer](), f"no answer within {options.timeout:g} s"
    fix = "see whether it runs"

    def ask() -> None:
        nonlocal why, fix
        try:
            answers.append(_ask(options, app))
        except Exception as exc:
            why = str(exc) or type(exc).__name__
            fix = advice_for(exc, getattr(options, "broker", ""))
            if isinstance(exc, SuperfetchError):  # it says itself what to do
                fix = ""

    # A name that is not resolved, or a server that dribbles, outlasts every socket's timeout.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(options.timeout)
    if not answers:
        text = f"the broker cannot be asked: {why.rstrip('.')}" + (f": {fix}" if fix else "")
        answers.append(Answer([Finding("critical", "unreachable", text, fix)], []))
    answer = answers[0]
    bad = [finding for finding in answer.findings if finding.level != "note"]
    code = 2 if any(finding.level == "critical" for finding in bad) else int(bool(bad))
    text = "; ".join(finding.text for finding in bad[:NAMED]) or ", ".join(answer.summary)
    suffix = f" (and {len(bad) - NAMED} more)" if len(bad) > NAMED else ""
    line = f"{WORDS[code]}: {text}{suffix}"
    if options.as_json:
        rows = [finding._asdict() for finding in answer.findings]
        document = {"status": WORDS[code], "code": code, "text": line, "summary": answer.summary}
        print(json.dumps({**document, "findings": rows}, indent=2))
    else:
        print(" ".join(printable_lines(line).split()))
    return code


def _parser(app: Celery | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "superfetch-check" if app is None else "celery -A app superfetch check",
        description="Say in one line whether all is well, as `status` has it, or whether one "
        "worker is.",
        epilog="The exit code is 0 if all is well, 1 after a warning, and 2 if something is "
        "critical or the broker cannot be asked.",
    )
    add = parser.add_argument
    if app is None:
        url = os.environ.get("CELERY_BROKER_URL")
        add(
            "--broker",
            default=url,
            required=not url,
            metavar="URL",
            help="the broker, by default $CELERY_BROKER_URL",
        )
        add("--prefix", default="", help="the app's global_keyprefix")
        add(
            "--accept",
            default="",
            metavar="CODES",
            help="warnings that are notes, as the app's accepted_findings",
        )
        add("--master", default="", metavar="NAME", help="the app's master_name, with sentinel://")
    add(
        "--this-host", action="store_true", help="a worker of this host must be heard, and not hang"
    )
    add(
        "--node",
        default="",
        metavar="NAME",
        help="this worker (celery@web-1) must be heard, and not hang",
    )
    add(
        "--timeout",
        type=_seconds,
        default=5.0,
        metavar="SECONDS",
        help="give up after this time (5)",
    )
    add("--json", action="store_true", dest="as_json", help="print one JSON document")
    return parser


def _seconds(text: str) -> float:
    """Parse a timeout. Threads and sockets refuse NaN and more than some hundred years."""
    with suppress(ValueError):
        seconds = float(text)
        if 0 < seconds <= TIMEOUT_MAX_S:  # false for NaN
            return seconds
    raise argparse.ArgumentTypeError(
        f"must be a number of seconds, above 0 and at most {TIMEOUT_MAX_S}, got {text!r}"
    )


def _ask(options: argparse.Namespace, app: Celery | None) -> Answer:
    if app is not None:
        with Inspector.of(app, timeout=options.timeout) as inspector:
            return _check(inspector, options.this_host, options.node)
    urls = list(filter(None, options.broker.split(";"))) or [""]
    if options.broker.startswith("sentinel:"):
        urls = [options.broker]

    def ask(url: str) -> Answer:
        timeout = options.timeout / len(urls)
        with Inspector.at(
            url, options.master, options.prefix, timeout, accepted=options.accept
        ) as inspector:
            return _check(inspector, options.this_host, options.node)

    for url in urls[:-1]:  # whichever is the primary; of a cluster, whoever can be reached
        with suppress(RedisError):
            return ask(url)
    return ask(urls[-1])


def _check(inspector: Inspector, this_host: bool, node: str) -> Answer:
    """Whether a worker of this host, or the one of this name, is well: one of them, since a probe's
    pod may just be replaced. With neither, whether all is, as `status` has it."""
    if not (this_host or node):
        overview = overview_of(inspector)
        return Answer(findings(overview), summary(overview))
    host = ProcessImage.current().host if this_host else ""
    troubles = []
    for facts, age, verdict in inspector.near(host):
        if node not in ("", facts.node):
            continue
        limit, name = facts.owner_ttl, facts.node or facts.owner
        if not verdict.dead and age <= limit:
            state = state_of(facts, age)
            return Answer([], [f"worker {name} was heard {span(age)} ago, its state is {state}"])
        why = [f"more than {span(limit)}"] if age > limit else []
        why += [verdict.value] if verdict.dead or verdict is Reason.RUNNING_SILENT else []
        troubles.append(f"worker {name} was not heard for {span(age)} ({'; '.join(why)})")
    whom = " ".join(filter(None, (node, host and f"of host {host}")))
    text = "; ".join(troubles) or f"no worker {whom} is registered"
    fix = "see what its main thread does, or restart it"
    return Answer([Finding("critical", "not-heard", text, fix)], [])
