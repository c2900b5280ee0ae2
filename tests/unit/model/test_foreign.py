"""Whatever an object of the user does when it is printed, there is one line of text."""

from __future__ import annotations

from typing import Any

import pytest

from celery_superfetch.model.foreign import (
    TEXT_MAX_CHARS,
    class_name,
    describe,
    escaped,
    loggable,
    message_of,
    one_line,
)
from support.workers.untrusted import RAISED, NoNotes, Unreadable, circular


class Text(str):
    """What a ``__str__`` may return: text that raises as soon as it is used."""

    def __getitem__(self, at: Any) -> Any:
        raise ValueError

    __len__ = __iter__ = isprintable = split = __getitem__  # type: ignore[assignment]


class Tricky:
    def __str__(self) -> str:
        return Text("tricky")

    __repr__ = __str__


class Meta(type):
    @property
    def __name__(cls) -> Any:  # type: ignore[override]
        raise ValueError

    def __repr__(cls) -> str:
        raise ValueError


class Nameless(metaclass=Meta):
    def __repr__(self) -> str:
        raise RecursionError


@pytest.mark.parametrize("kind", RAISED)
@pytest.mark.parametrize("text_of", [describe, message_of])
def test_each_exception_has_a_text_of_one_printable_line(kind, text_of):
    error = RAISED[kind][0]()
    text = text_of(error)
    assert type(text) is str
    assert text
    assert text.isprintable()
    assert len(text) <= TEXT_MAX_CHARS
    text.encode()
    assert len(text_of(error, 20)) <= 20


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a b", "'a b'"),
        ({"a": [1, None]}, "{'a': [1, None]}"),
        (ValueError("no"), "ValueError('no')"),
        (Tricky(), "tricky"),
        (Unreadable(), "<Unreadable, whose repr raises ValueError>"),
        ([Unreadable()], "<list, whose repr raises ValueError>"),
    ],
)
def test_other_objects_are_described_as_repr_does_where_it_can(value, text):
    assert describe(value) == text


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("two\n  lines\t"), "two lines"),
        (ValueError(), "ValueError()"),
        (ValueError("\x1b[31mred\x00"), "\\x1b[31mred\\x00"),
        (ValueError("\ud800"), "\\ud800"),
        (KeyError("a"), "'a'"),
    ],
)
def test_what_an_exception_says_is_one_line(error, text):
    assert message_of(error) == text


def test_a_text_is_cut_where_it_is_too_long():
    assert one_line("a  b" * 1000, 10) == "a ba ba..."
    assert one_line("a" * 10, 10) == "a" * 10
    assert one_line("a" * 11, 10) == "aaaaaaa..."
    assert escaped("\0" * 10, 10) == "\\x00\\x0..."
    assert one_line(" " * 10_000 + "a") == "..."


def test_a_class_has_a_name_whatever_it_says_itself():
    assert describe(Nameless()) == "<Nameless, whose repr raises RecursionError>"
    assert describe(Nameless) == "<Meta, whose repr raises ValueError>"
    assert class_name(Nameless()) == "Nameless"
    assert class_name(Nameless) == "Meta"


def test_a_traceback_that_cannot_be_formatted_is_left_out():
    error = circular()
    assert loggable(error) is error
    assert loggable(NoNotes()) is None
