"""The steps that jobs have handed on, each noted beside its claim (`s` and the claim id)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..model.step import Claim
from .database import Structure
from .wire.scripts import Call


class Steps(Structure):
    def step(
        self, claim: Claim, note: str, message: str | bytes, lists: Sequence[str], ms: int
    ) -> Call:
        """The call that pushes a message to the first of some queue lists, which expire together
        in so many ``ms`` (0: they do not). It returns 1; 0 where that was done before; -1 where the
        claim is over."""
        keys = [claim.private, *map(self.keys.queue, lists)]
        return Call("step", keys, [claim.id, note, message, ms])

    def hand_on(self, *step: Any) -> int:
        return int(self.scripts.run(*self.step(*step)))
