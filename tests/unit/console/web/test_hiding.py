"""Arguments on the page: no secret is in what is shown, and what is none stays as it is."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_superfetch.console.web.hiding import HIDE, Hiding, parameters_of
from celery_superfetch.console.web.secret_names import is_named_by
from celery_superfetch.console.web.secret_urls import mask_urls

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
        "{'name': 'X-Api-Key', 'value': 'S3CRET'}",
        "[{'key': 'db password', 'stringValue': b'S3CRET', 'n': 1}]",
        "(Header(name='api-key', value='S3CRET'), Header('Bearer', 'S3CRET'))",
        "(['curl', '--pass', 'S3CRET', '-u', 'a'],)",
        "('token', 'S3CRET', 3)",
        "['password', 'token', 'S3CRET']",
        "('Authorization: Bearer S3CRET',)",
        "('bearer S3CRET',)",
        "('deploy --api-key S3CRET --fast',)",
        "(['sh', '-c', 'deploy --password  S3CRET'],)",
        """('{"headers": [{"name": "x_api_key", "value": "S3CRET"}]}',)""",
        """('[["csrf", "S3CRET"]]', 1)""",
        "{password: 'S3CRET'}",
        "{Key.PASSWORD: 'S3CRET'}",
        "(password == 'S3CRET',)",
        "(lambda password='S3CRET': 1)",
        "('https://S3CRET@git/', 'https://shop/cb?code=S3CRET&S3CRET#id_token=S3CRET')",
        "(<Request https://shop/cb?code=S3CRET>,)",
        "('redis://:pa/S3CRET@cache/0',)",
        "('see redis://:S3CRET@cache/0, and amqp://a:S3CRET@mq//',)",
        "({'Key': 'apiToken', 'Value': 'S3CRET'}, {'NAME': 'otp', 'v': 'S3CRET'})",
        "{('user', 'password'): 'S3CRET'}",
        "('https://shop/p;jsessionid=S3CRET', '//u:S3CRET@shop/p')",
        """('<add key="ApiKey" value="S3CRET"/>', '- name: DB_PASSWORD\\n  value: S3CRET')""",
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
        *("(", "('http://shop:8080/a/@b#c', 'redis://[::1]:6379/0', {'author': 'A', 'n': -1})"),
        *("('a', 'b', 3)", "{'name': 'size', 'value': 3}", "Point(x=1, y=2j)", "('a = b, c: d',)"),
    ],
)
def test_what_is_no_secret_stays_as_it_is(text):
    assert HIDING.hide(text) == text


def test_what_is_hidden_leaves_its_neighbours():
    assert HIDING.hide("{'to': 'a', 'token': 'S3CRET'}") == "{'to': 'a', 'token': ***}"


@pytest.mark.parametrize(
    "name",
    [
        *("password", "db_password", "userPass", "dbpass", "PWD", "pwd_hash", "clientSecret"),
        *("api-key", "X-Api-Key", "apiKey", "APIKEY", "api_key_id", "privateKey", "private-key"),
        *("access_key", "AWS_ACCESS_KEY_ID", "auth", "x-auth", "authHeader", "authorization"),
        *("oauth", "jwt", "idJWT", "bearer", "otp", "o-t-p", "otp_code", "ssn", "userSSN", "s.s.n"),
        *("csrf", "csrfmiddlewaretoken", "signature", "X-Amz-Signature", "dsn", "SENTRY_DSN"),
        *("creds", "aws_creds", "credential", "sessionid", "cookies", "cardNumber", "cvv2", "iban"),
    ],
)
def test_the_name_of_a_secret(name):
    assert is_named_by(HIDE)(name)


@pytest.mark.parametrize(
    "name",
    [
        *("author", "authors", "passenger_count", "passed", "compass", "class_name", "className"),
        *("process_name", "address_no", "root_path", "rootPath", "records_name", "footprint"),
        *("wildcard", "discarded", "cardinality", "key", "id", "name", "user", "amount", "", "-"),
    ],
)
def test_no_name_of_a_secret(name):
    assert not is_named_by(HIDE)(name)


def test_words_of_the_user_stand_instead_of_the_list():
    assert Hiding(["shoe-size"]).hide("{'shoeSize': 1, 'password': 2}") == (
        "{'shoeSize': ***, 'password': 2}"
    )
    assert Hiding("pin").hide("{'pin': 1, 'p': 2}") == "{'pin': ***, 'p': 2}", "a word by itself"
    assert Hiding(["", "-"]).hide("{'-': 1}") == "{'-': 1}"


def test_a_callable_is_asked_for_each_name_and_hides_all_if_it_raises():
    asked: list[str] = []

    def hide(name: str) -> bool:
        asked.append(name)
        return name == "pin"

    assert Hiding(hide).hide("('a', {'pin': 1, 'n': 2})", ["x"]) == "('a', {'pin': ***, 'n': 2})"
    assert {"x", "pin", "n"} <= {*asked}
    assert Hiding(lambda name: 1 / 0).hide("{'n': 2}") == "***"  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:pw@cache:6379/0", "redis://***@cache:6379/0"),
        ("redis://user:p%40w@cache/0?ssl=1", "redis://***@cache/0?ssl=***"),
        ("https://key@sentry.example/42", "https://***@sentry.example/42"),
        ("https://u:p@h/a/@b/c", "https://***@b/c"),
        ("https://h/a?x=1&y&z=", "https://h/a?x=***&***&z=***"),
        ("https://h/a#top", "https://h/a#top"),
        ("https://h/a#t=1&u", "https://h/a#t=***&u"),
        ("https://h:8080/a", "https://h:8080/a"),
        ("https://@h/", "https://***@h/"),
        ("no://", "no://"),
        ("//u:p@h/a;b=1/c;d", "//***@h/a;b=***/c;d"),
        ("a//b", "a//b"),
    ],
)
def test_a_url_without_its_secrets(url, shown):
    assert mask_urls(url) == shown
    assert mask_urls(f"a {url} b {url}") == f"a {shown} b {shown}"


def test_a_sentence_is_masked_from_a_name_on_and_where_it_quotes_what_is_hidden():
    text = "it raised: no card S3CRET-1 at https://u:p@h/, password='S3CRET' (line 3)"
    shown = HIDING.text(text, ["S3CRET-1", "no"])
    assert shown == "it raised: *** card *** at https://***@h/, password=***"
    reason = "cannot be received: KeyError (auth/token.py, line 12); no other live worker"
    assert HIDING.text(reason) == reason, "where it was raised is no secret"


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
