"""Arguments on the page: no secret is in what is shown, and what is none stays as it is."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_superfetch.console.web.hiding import HIDE, Hiding, parameters_of

HIDING = Hiding(HIDE)


@pytest.mark.parametrize(
    "text",
    [
        "{'password': 'S3CRET'}",
        "{'user': {'apiToken': ['S3CRET', 1]}, 'n': 3}",
        "({'CARD_NUMBER': 'S3CRET'},)",
        "(b'password=S3CRET',)",
        "('https://shop/?token=S3CRET',)",
        """('{"password": "S3CRET"}',)""",
        "('<secret>S3CRET</secret>',)",
        "[('password', 'S3CRET')]",
        "(Login(name='a', password='S3CRET'), 2)",
        "(SecretStr('S3CRET'),)",
        "{'password': 'S3CRET', ...",
        "{'user': <User a>, 'password': 'S3CRET'}",
        "(" * 5000 + "'token', 'S3CRET'",
        "('redis://:S3CRET@cache/0',)",
        "{'dsn': b'amqp://shop:S3CRET@10.0.0.1//'}",
        "(<Engine postgresql://shop:S3CRET@db/shop>,)",
    ],
)
def test_a_secret_is_hidden(text):
    shown = HIDING.hide(text)
    assert "S3CRET" not in shown
    assert "***" in shown


@pytest.mark.parametrize(
    "text",
    [
        *("", "()", "('a',  7)", "{'to': 'a@b', 'n': 1.50}", "(<User a>,)", "(not shown: pickle)"),
        *("(", "('http://shop:8080/a?b=c@d', 'redis://user@cache/0')"),
    ],
)
def test_what_is_no_secret_stays_as_it_is(text):
    assert HIDING.hide(text) == text


def test_what_is_hidden_leaves_its_neighbours():
    assert HIDING.hide("{'to': 'a', 'token': 'S3CRET'}") == "{'to': 'a', 'token': ***}"


def test_other_names_and_none():
    assert Hiding(["ssn"]).hide("{'SSN': 1, 'password': 2}") == "{'SSN': ***, 'password': 2}"
    assert Hiding([]).hide("{'password': 2}") == "{'password': 2}"


def test_a_positional_argument_is_hidden_by_its_parameter():
    app = Celery("shop", set_as_current=False)

    @app.task(name="shop.pay", bind=True, shared=False)
    def pay(self: object, order: str, card: str, *tokens: str) -> None: ...

    names = parameters_of(app, "shop.pay")
    assert HIDING.hide("('A-1', 'S3CRET', 'S3CRET')", names) == "('A-1', ***, ***)"
    assert HIDING.hide("('A-1', <Card S3CRET>)", names) == "***", "not readable, so all of it"
    assert parameters_of(app, "shop.unknown") is parameters_of(app, None) is None
    assert HIDING.hide("('A-1', 'S3CRET')", None) == "***", "whatever its parameters are"
    assert HIDING.hide("()", None) == "()"
