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
from ..inspector import Inspector, advice_for, trouble_of
from ..model.arguments import printable_lines
from ..model.humanize import span
from ..model.process import ProcessImage
from ..model.verdict import Reason
from .finding import Finding
from .health import findings, summary
from .overview import overview_of, state_of

if TYPE_CHECKING:
    from celery import Celery

STATUS_WORDS = "OK", "WARNING", "CRITICAL"

#: Findings named in the line; the document has them all.
FINDINGS_NAMED = 3

#: Seconds that an answer may take at most.
TIMEOUT_MAX_S = 3600


class Answer(NamedTuple):
    """The findings of a check, and a summary in a few words."""

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
    trouble, fix = "the broker cannot be reached", "check whether it runs"

    def run() -> None:
        nonlocal trouble, why, fix
        try:
            answers.append(_answer(options, app))
        except Exception as exc:
            trouble, why = trouble_of(exc), str(exc) or type(exc).__name__
            fix = advice_for(exc, getattr(options, "broker", ""))
            if isinstance(exc, SuperfetchError):  # its text has the fix
                fix = ""

    # The search for a name, or a server that sends a byte at a time, outlasts a socket's timeout.
    asking = threading.Thread(target=run, daemon=True)
    asking.start()
    asking.join(options.timeout)
    if not answers:
        text = f"{trouble}: {why.rstrip('.')}" + (f": {fix}" if fix else "")
        answers.append(Answer([Finding("critical", "unreachable", text, fix)], []))
    answer = answers[0]
    bad = [finding for finding in answer.findings if finding.level != "note"]
    code = 2 if any(finding.level == "critical" for finding in bad) else int(bool(bad))
    text = "; ".join(finding.text for finding in bad[:FINDINGS_NAMED]) or ", ".join(answer.summary)
    suffix = f" (and {len(bad) - FINDINGS_NAMED} more)" if len(bad) > FINDINGS_NAMED else ""
    line = f"{STATUS_WORDS[code]}: {text}{suffix}"
    if options.as_json:
        rows = [finding.as_dict() for finding in answer.findings]
        document = {
            "status": STATUS_WORDS[code],
            "code": code,
            "text": line,
            "summary": answer.summary,
        }
        print(json.dumps({**document, "findings": rows}, indent=2))
    else:
        print(" ".join(printable_lines(line).split()))
    return code


def _parser(app: Celery | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "superfetch-check" if app is None else "celery -A app superfetch check",
        description="Print one line: whether all is well, by the findings of `status`; or, "
        "with --this-host or --node, whether a worker is alive.",
        epilog="The exit code is 0 if all is well, 1 after a warning, and 2 if something is "
        "critical or the broker cannot be reached.",
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
            help="warnings that count as notes, as in the app's accepted_findings",
        )
        add("--master", default="", metavar="NAME", help="the app's master_name, with sentinel://")
    add(
        "--this-host",
        action="store_true",
        help="check that a worker on this host is alive and responsive",
    )
    add(
        "--node",
        default="",
        metavar="NAME",
        help="check that this worker (celery@web-1) is alive and responsive",
    )
    add(
        "--timeout",
        type=_seconds,
        default=5.0,
        metavar="SECONDS",
        help="give up after this time (default: 5)",
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


def _answer(options: argparse.Namespace, app: Celery | None) -> Answer:
    if app is not None:
        with Inspector.of(app, timeout=options.timeout) as inspector:
            return _check(inspector, options.this_host, options.node)
    urls = list(filter(None, options.broker.split(";"))) or [""]
    if options.broker.startswith("sentinel:"):
        urls = [options.broker]

    def run(url: str) -> Answer:
        timeout = options.timeout / len(urls)
        with Inspector.at(
            url, options.master, options.prefix, timeout, accepted=options.accept
        ) as inspector:
            return _check(inspector, options.this_host, options.node)

    for url in urls[:-1]:  # of a failover list or a cluster: the first that answers
        with suppress(RedisError):
            return run(url)
    return run(urls[-1])


def _check(inspector: Inspector, this_host: bool, node: str) -> Answer:
    """Check a worker of this host, or of this name, or everything as `status` does.

    Of several workers one has to live: during a deploy the pod of a probe has an old and a new one.
    """
    if not (this_host or node):
        overview = overview_of(inspector)
        return Answer(findings(overview), summary(overview))
    host = ProcessImage.current().host if this_host else ""
    troubles = []
    for record, age, verdict in inspector.near(host):
        if node not in ("", record.node):
            continue
        limit, name = record.owner_ttl, record.node or record.owner
        if not verdict.dead and age <= limit:
            state = state_of(record, age)
            return Answer(
                [], [f"worker {name} sent a heartbeat {span(age)} ago, its state is {state}"]
            )
        why = [f"more than {span(limit)}"] if age > limit else []
        why += [verdict.value] if verdict.dead or verdict is Reason.RUNNING_SILENT else []
        troubles.append(f"worker {name} has sent no heartbeat for {span(age)} ({'; '.join(why)})")
    whom = " ".join(filter(None, (node, host and f"of host {host}")))
    text = "; ".join(troubles) or f"no worker {whom} is registered"
    fix = "see what its main thread does (py-spy dump), or restart it"
    return Answer([Finding("critical", "no-heartbeat", text, fix)], [])
