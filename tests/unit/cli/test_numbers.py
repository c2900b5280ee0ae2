"""Numbers on a command line that a range does not exclude, and that a wait cannot have."""

from __future__ import annotations

import click
import pytest

from celery_superfetch.cli.session import SECONDS_MAX, Seconds
from celery_superfetch.console.probe import main

NO_SECONDS = "nan", "inf", "1e12"


@pytest.mark.parametrize("text", NO_SECONDS)
def test_an_option_in_seconds_is_finite(text):
    assert Seconds(0).convert(str(SECONDS_MAX), None, None) == SECONDS_MAX
    with pytest.raises(click.BadParameter, match=f"must be a number of seconds up to .*got {text}"):
        Seconds(0).convert(text, None, None)
    accepted = click.FloatRange(0).convert(text, None, None)
    assert str(accepted) in (text, str(float(text))), "control: click's own range accepts it"


@pytest.mark.parametrize("text", [*NO_SECONDS, "0", "-1", "soon"])
def test_a_probe_says_which_timeouts_there_are(text, capsys):
    """A thread raises on NaN and infinity: the probe ended with a traceback."""
    with pytest.raises(SystemExit) as ended:
        main(["--broker", "redis://127.0.0.1:1/0", "--timeout", text])
    assert ended.value.code == 2
    assert f"above 0 and at most 3600, got '{text}'" in capsys.readouterr().err
