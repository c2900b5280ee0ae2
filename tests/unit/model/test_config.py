"""Options: one frozen value, refused loudly."""

from __future__ import annotations

import pytest

from celery_superfetch.errors import ConfigError, SuperfetchError
from celery_superfetch.model.config import DURATION_MAX_S, REMOVED_OPTIONS, TYPE_BY_OPTION, Config
from celery_superfetch.transport.transport import KNOWN_OPTIONS

DEFAULTS = {
    "heartbeat_interval": 5,
    "owner_ttl": 60,
    "reap_interval": 10,
    "strike_limit": 3,
    "strike_window": 72 * 3600,
    "recovery_limit": 20,
    "stop_limit": 50,
    "dead_limit": 10_000,
    "dead_ttl": 180 * 86400,
    "claim_limit": 64,
}
NUMBERS = sorted(DEFAULTS)


def test_the_defaults_are_the_documented_ones():
    config = Config()
    assert {name: getattr(config, name) for name in DEFAULTS} == DEFAULTS
    named = {"app_name", "global_keyprefix", "priority_steps", "sep", "unknown_tasks"}
    named |= {"accepted_findings"}
    assert set(TYPE_BY_OPTION) == set(DEFAULTS) | named


def test_stops_may_have_no_limit():
    assert Config(stop_limit=None).stop_limit is None
    assert Config(stop_limit=1).stop_limit == 1
    for wrong in (0, -1, 1.5, "50", True):
        with pytest.raises(ConfigError, match="stop_limit"):
            Config(stop_limit=wrong)


@pytest.mark.parametrize("steps", [[], (), None, 3, "0369", ["0"], [0, None], [True]], ids=repr)
def test_steps_of_which_there_is_no_list_are_refused(steps):
    with pytest.raises(ConfigError, match="'priority_steps' must be a list of at least one whole"):
        Config.from_options({"priority_steps": steps})


@pytest.mark.parametrize("steps", [[0], (0, 5), range(10), [0, 3, 6, 9]], ids=repr)
def test_steps_as_kombu_takes_them_are_kept(steps):
    assert Config.from_options({"priority_steps": steps}).priority_steps == tuple(steps)


def test_a_separator_has_to_separate():
    with pytest.raises(ConfigError, match="'sep' must be a string of at least one character"):
        Config(sep="")


def test_what_becomes_of_unknown_tasks_is_one_of_two():
    assert Config().unknown_tasks == "requeue"
    with pytest.raises(ConfigError, match="must be one of 'requeue', 'discard', got 'dead'"):
        Config(unknown_tasks="dead")


def test_a_config_cannot_be_changed():
    with pytest.raises(AttributeError, match="owner_ttl"):
        Config().owner_ttl = 1


def test_the_same_options_are_the_same_value():
    """Memberships are found by it: else a worker would be a new owner after each reconnect."""
    assert Config(owner_ttl=30) == Config.from_options({"owner_ttl": 30})
    assert len({Config(), Config(), Config(owner_ttl=30)}) == 2


def test_options_are_taken_over():
    config = Config.from_options({"owner_ttl": 30, "strike_limit": 5, "global_keyprefix": "shop:"})
    assert (config.owner_ttl, config.strike_limit) == (30, 5)
    assert config.global_keyprefix == "shop:"
    assert config.heartbeat_interval == 5


@pytest.mark.parametrize("name", [name for name in NUMBERS if TYPE_BY_OPTION[name] == "float"])
def test_a_duration_has_an_upper_bound(name):
    """D2. With a `strike_window` of 10**16 s EXPIRE failed behind LREM: the job was nowhere."""
    ttl = {"owner_ttl": DURATION_MAX_S} if name == "heartbeat_interval" else {}
    with pytest.raises(ConfigError, match=rf"'{name}' must be at most 315360000 s \(ten years\)"):
        Config(**{name: 1e16, **ttl})  # type: ignore[arg-type]
    assert (
        getattr(Config(**{"owner_ttl": DURATION_MAX_S, name: DURATION_MAX_S / 2}), name)
        == DURATION_MAX_S / 2
    )  # type: ignore[arg-type]


def test_kombus_options_pass_unread():
    options = {"priority_steps": [0, 3], "sep": ":", "owner_ttl": 40}
    assert Config.from_options(options, known=("priority_steps", "sep")).owner_ttl == 40


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("owner_tll", "owner_ttl"),
        ("heartbeat_intervall", "heartbeat_interval"),
        ("strikes_limit", "strike_limit"),
        ("priority_step", "priority_steps"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_name(wrong, right):
    with pytest.raises(ConfigError) as caught:
        Config.from_options({wrong: 1}, known=("priority_steps",))
    assert repr(wrong) in str(caught.value)
    assert f"did you mean {right!r}?" in str(caught.value)


@pytest.mark.parametrize("name", sorted(REMOVED_OPTIONS))
def test_a_removed_option_is_refused_with_what_to_do(name):
    with pytest.raises(
        ConfigError, match=f"unknown option '{name}': it was removed. Instead, run `celery -A "
    ):
        Config.from_options({name: 1})


@pytest.mark.parametrize(
    "name",
    [
        *("confirm_publish", "connect_timeout", "data_folder_in", "heartbeat", "login_method"),
        *("predefined_queues", "queue_name_prefix", "read_timeout", "region", "retry_policy"),
    ],
)
def test_an_option_of_another_broker_is_nobodys_to_refuse(name):
    assert Config.from_options({name: 1, "owner_ttl": 30}, KNOWN_OPTIONS) == Config(owner_ttl=30)


def test_an_unknown_name_is_refused_before_any_value_is_read():
    with pytest.raises(ConfigError, match="owner_tll"):
        Config.from_options({"owner_ttl": "no number", "owner_tll": 1})


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    "value", [True, False, "60", None, [60], 0, -1, float("nan"), float("inf"), 1j], ids=repr
)
def test_an_impossible_number_is_refused_by_name(name, value):
    if value is None and name == "stop_limit":
        pytest.skip("None turns it off")
    """Each ends in a command of the server, which knows no infinity."""
    with pytest.raises(ConfigError, match=repr(name)):
        Config(**{name: value})


@pytest.mark.parametrize("name", ["strike_limit", "recovery_limit", "dead_limit", "claim_limit"])
def test_a_number_of_jobs_is_whole(name):
    with pytest.raises(ConfigError, match=f"{name!r} must be a whole number"):
        Config(**{name: 2.5})


@pytest.mark.parametrize("name", ["app_name", "global_keyprefix", "sep"])
def test_a_name_is_text(name):
    with pytest.raises(ConfigError, match=repr(name)):
        Config(**{name: 7})


def test_a_ttl_of_less_than_two_heartbeats_is_refused():
    with pytest.raises(ConfigError) as caught:
        Config(heartbeat_interval=5, owner_ttl=9.9)
    assert "option 'owner_ttl' must be at least twice 'heartbeat_interval'" in str(caught.value)
    assert "got 9.9 s and 5 s" in str(caught.value)


def test_a_ttl_of_exactly_two_heartbeats_is_allowed():
    assert Config(heartbeat_interval=5, owner_ttl=10).owner_ttl == 10


def test_one_except_clause_catches_a_config_error_either_way():
    assert issubclass(ConfigError, SuperfetchError)
    assert issubclass(ConfigError, ValueError)
