"""What the page hides: a value that is masked among the arguments is nowhere else, neither in a
reason, nor in the history, nor for a search; and reasons that workers store quote no argument."""

from __future__ import annotations

import base64
import json
import random
import re
import string
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from starlette.testclient import TestClient

from celery_superfetch import PoisonPill
from celery_superfetch.console.web import create_app
from celery_superfetch.console.web.hiding import Hiding
from celery_superfetch.console.web.secret_names import HIDE
from celery_superfetch.model.dead_job import DeadJob
from support.forms import browser_at, key
from support.waiting import eventually
from support.workers.bench import Bench, payload
from support.workers.odd import encoded, message
from support.workers.odd import payload as odd

SECRET = "4929-S3CRET"
#: A body that its content type does not allow, and whose error has all of it in its ``repr``.
NOT_UTF8 = base64.b64encode(f'[[], {{"card": "{SECRET}'.encode() + b'\xff"}, {}]').decode()

#: Messages that cannot be received or read, and what the reason says instead of the value.
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "kwargs": (
        {"body": [[], [["card", SECRET]], {}]},
        "cannot be received: 'kwargs' is of type list",
    ),
    "retries": ({"headers": {"retries": SECRET}}, "cannot be received: 'retries' is of type str"),
    "a limit": (
        {"headers": {"timelimit": [SECRET, None]}},
        "cannot be received: 'timelimit' holds a value of type str",
    ),
    "the body": (
        {"envelope": {"body": NOT_UTF8}},
        "cannot be read: DecodeError from UnicodeDecodeError (",
    ),
}


@pytest.fixture
def app(make_app: Callable[..., Celery]) -> Celery:
    made = make_app()

    @made.task(name="shop.pay", shared=False)
    def pay(order: str, card: str) -> None: ...

    return made


@pytest.fixture
def visit(app: Celery, bench: Bench) -> Callable[..., TestClient]:
    """`visit(hide=...)`: a browser at the page."""

    def make(**options: Any) -> TestClient:
        return browser_at(create_app(app, **options))

    return make


def send_what_quotes_a_secret(app: Celery, client: Any) -> dict[str, str]:
    """Send jobs that end in the dead set; id -> the beginning of the reason of each."""
    expected = {}
    for name, (how, reason) in BROKEN.items():
        client.lpush("celery", odd(message(name, task="shop.note", **how)))
        expected[f"id-{name}"] = reason
    expected[app.send_task("features.exits", ("exits", SECRET)).id] = "it raised SystemExit"
    return expected


def reasons(db: Any) -> dict[str, str]:
    return {record["task_id"]: record["reason"] for record in db.dead()}


def test_reasons_name_the_type_and_not_the_value(worker, app, db, client, cli):
    one = worker(app="features", pool="threads", options={"strike_limit": 2})
    expected = send_what_quotes_a_secret(app, client)
    eventually(lambda: reasons(db).keys() == expected.keys(), within=60, message=one.tail())
    for id, reason in reasons(db).items():
        assert reason.startswith(expected[id]), (id, reason)
    for id in expected:  # the caller's result, which anybody may read who has its id
        with pytest.raises(PoisonPill) as told:
            app.AsyncResult(id).get(timeout=20)
        assert SECRET not in f"{told.value} {told.value.args}"
    for record in db.dead():
        payload_alone = {**record, "payload": ""}
        assert SECRET not in json.dumps(payload_alone)
    listed = json.loads(cli("dead", "list", "--json").out)["jobs"]
    for job in listed:
        assert SECRET not in json.dumps({**job, "payload": "", "args": "", "kwargs": ""})
    assert SECRET not in cli("status").out


def test_the_control_the_text_of_an_error_quotes_it(worker, app, db, client):
    one = worker(
        app="features",
        pool="threads",
        options={"strike_limit": 2},
        env={"WITHOUT": "reasons_without_values"},
    )
    expected = send_what_quotes_a_secret(app, client)
    eventually(lambda: reasons(db).keys() == expected.keys(), within=60, message=one.tail())
    quoting = [id for id, reason in reasons(db).items() if SECRET in reason]
    assert len(quoting) == 2, "the body's and the exit's"


def killed(bench: Bench, **options: Any) -> DeadJob:
    """A job whose reason and history quote the argument that its name hides."""
    texts = {"argsrepr": f"('A-1', '{SECRET}')", "kwargsrepr": "{'apiKey': 'k3y-value', 'n': 1}"}
    [job] = bench.killed(
        payload("x", task="shop.pay", **texts),
        **{"reason": f"it raised: card {SECRET} was declined, k3y-value", **options},
    )
    return job


def pages_of(browser: TestClient, job: DeadJob) -> Iterator[str]:
    for path in ("/", "/?all", "/charts", "/server", "/dead", f"/dead/{job.id}"):
        yield browser.get(path).text


def test_what_is_masked_among_the_arguments_is_masked_in_reasons_and_history(bench, visit):
    job = killed(bench)
    browser = visit()
    for page in pages_of(browser, job):
        assert SECRET not in page
        assert "k3y-value" not in page
    assert "card *** was declined, ***" in browser.get("/dead").text
    open_page = "".join(pages_of(visit(hide=[]), job))
    assert open_page.count(SECRET) == 2 * 1 + 2 + 3, "the control: nothing is named, nothing hides"


def test_a_search_finds_what_is_shown_and_nothing_else(bench, visit):
    job = killed(bench)
    browser = visit(read_only=False)

    def finds(reason: str) -> tuple[bool, str]:
        """Whether a search shows it, and what the question says of how many it would retry."""
        found = f'value="{job.id}"' in browser.get("/dead", params={"reason": reason}).text
        form = {"key": key(browser), "do": "retry all"}
        asked = browser.post("/dead", params={"reason": reason}, data=form).text
        none = "No job matches: nothing can be changed." in asked
        return found, "0" if none else re.findall(r"Requeue (\d+) dead job", asked)[0]

    for part in (SECRET, SECRET[:6], "S3CRET", "k3y-value"):
        assert finds(part) == (False, "0"), part
    for part in ("was declined", "CARD ***", "it raised"):
        assert finds(part) == (True, "1"), part
    assert len(bench.dead_set) == 1
    killed(bench)
    open_page = visit(hide=[]).get("/dead", params={"reason": SECRET}).text
    assert "declined" in open_page, "the control: it is found where it is shown"


def test_of_a_task_that_the_page_does_not_know_all_arguments_are_masked_everywhere(bench, visit):
    texts = {"argsrepr": f"('A-1', '{SECRET}')", "kwargsrepr": "{}"}
    [job] = bench.killed(payload("x", task="shop.unknown", **texts), reason=f"KeyError('{SECRET}')")
    for page in pages_of(visit(), job):
        assert SECRET not in page
        assert "A-1" not in page


def test_a_callable_decides_by_the_name_and_hides_all_if_it_raises(bench, visit):
    job = killed(bench)

    def initials(name: str) -> bool:
        return name[:1] in "ca"

    shown = visit(hide=initials).get(f"/dead/{job.id}").text
    assert SECRET not in shown
    assert "A-1" in shown

    def broken(name: str) -> bool:
        if name == "n":
            raise ValueError(name)  # also what a text that cannot be read raises
        return False

    class NoAnswer:
        def __bool__(self) -> bool:
            raise SystemExit

    for raises in (broken, lambda _: NoAnswer(), lambda: True):
        browser = visit(hide=raises)
        for page in pages_of(browser, job):
            assert SECRET not in page
            assert "A-1" not in page
            assert "declined" not in page
        assert browser.get(f"/dead/{job.id}").status_code == 200


HOSTILE = ("(", "[", "{", "'", '"', "b'", "\\", ":", ",", "=", "*", "-", "lambda:", "f'{", "\x00")
HOSTILE += ("\ud800", "password", "https://", "?", "@", "#", "&", ")", "]", "}", "\n", "9" * 400)


@pytest.mark.filterwarnings("ignore")  # pytest takes away the filter of the module
def test_the_masking_parser_survives_hostile_input():
    """It never raises, never evaluates, and what it cannot read it shows only without names."""
    hiding, chance = Hiding(HIDE), random.Random(47)
    texts = [part * (1024 // len(part)) for part in HOSTILE]
    texts += ["(" * 200 + "'x'" + ")" * 200, "-" * 1000 + "1", "'" + "a=" * 500 + "'", "a_" * 512]
    texts += [
        "not " * 250 + "1",
        "x" + ".y" * 500,
        "'bearer" + " " * 1000 + "'",
        "__import__('os')",
    ]
    for _ in range(1500):
        texts.append("".join(chance.choices(HOSTILE, k=chance.randrange(1, 40))))
    for text in texts:
        for shown in (
            hiding.hide(text, ["a", "card"]),
            hiding.hide(text),
            hiding.text(text, [text]),
        ):
            assert isinstance(shown, str)
    for _ in range(300):  # a secret amid rubbish
        noise = "".join(
            chance.choices((*HOSTILE, *string.ascii_letters), k=chance.randrange(0, 30))
        )
        text = f"{{'password': '{SECRET}', 'x': {noise}"
        assert SECRET not in hiding.hide(text), text


def test_a_hostile_name_among_arguments_costs_the_page_nothing(bench, visit):
    """Nested as deep as a message may be, and with a body of a megabyte."""
    for number, args in enumerate(["(" * 1000, "[" * 500 + "'token'" + "]" * 500, "{" * 3000]):
        bench.killed(payload(number, argsrepr=args, kwargsrepr=args[::-1], task="shop.pay"))
    body = encoded([[{"password": SECRET}] * 40_000, {"password": SECRET}, {}])
    [large] = bench.killed(odd(message("large", envelope={"body": body})), reason=SECRET)
    browser = visit()
    assert browser.get("/dead").status_code == 200
    page = browser.get(f"/dead/{large.id}")
    assert page.status_code == 200
    assert "not shown" in page.text or "***" in page.text
