"""A property that is computed once, without a lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class lazy_property(Generic[T]):
    """``functools.cached_property`` without the lock that it has before Python 3.12.

    That lock is one for all objects of the class. A thread that holds it while it computes a value
    (``Scripts`` asks the server) may do so while another thread forks a process of the pool: then
    it stays locked in that process, whose first job to publish a step waits for ever.
    Two threads may compute a value at the same time; either may stay.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> lazy_property[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        value = vars(instance)[self._name] = self._compute(instance)
        return value
