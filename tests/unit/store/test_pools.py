"""Which connections of a process share a pool."""

from __future__ import annotations

import ssl
from typing import Any

from redis import CredentialProvider

from celery_superfetch.store.redis.pools import shared_pool

PLACE = {"host": "127.0.0.1", "port": 1}


class Hidden:
    """A secret that compares by its value, and does not print it."""

    def __init__(self, value: str) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hidden) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return "Hidden(***)"


class Provider(CredentialProvider):
    def __init__(self, secret: Any) -> None:
        self.secret = secret


def test_what_has_no_value_makes_no_other_pool():
    one = shared_pool({**PLACE, "db": 0, "password": None, "retry_on_timeout": False})
    assert shared_pool({**PLACE, "retry_on_timeout": None}) is one


def test_who_verifies_the_server_shares_no_pool_with_who_does_not():
    default = shared_pool(PLACE)
    unverified = shared_pool({**PLACE, "ssl_cert_reqs": ssl.CERT_NONE})
    any_name = shared_pool({**PLACE, "ssl_check_hostname": False})
    assert len({default, unverified, any_name}) == 3


def test_two_users_share_no_pool_whose_secrets_print_alike():
    one = shared_pool({**PLACE, "credential_provider": Provider(Hidden("one"))})
    assert shared_pool({**PLACE, "credential_provider": Provider(Hidden("two"))}) is not one
    assert shared_pool({**PLACE, "credential_provider": Provider(Hidden("one"))}) is one
