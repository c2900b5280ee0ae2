"""Every run of a script is done once more, in plain Python; its reply must be the one that follows.

It also judges each decision by what really was: which job ended its process, and what ran then.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

from celery_superfetch.model.job import digest
from celery_superfetch.store.private_lists import RAN
from celery_superfetch.store.wire.scripts import Call
from model.truth import STRUCK, Card, Known, Verdict


class Truth(Known):
    """The model, as it changes."""

    def publish(self, queue_list: str, payload: bytes) -> None:
        self.cards[payload].chances += self.copies(payload) > 0
        self.published[payload] += 1
        self.lists[self.keys.queue(queue_list)][payload] += 1

    def move(self, source: str, target: str, payload: bytes) -> None:
        """What no script did."""
        assert self._take(source, payload)
        self.lists[target][payload] += 1

    def drain_probation(self) -> None:
        """An operator's drain ends it for all; they are marked, and go on it again."""
        self.drained = True
        for name in self.on_probation:
            suspects = self.lists[self.keys.probation(name)]
            self.lists[self.keys.queue(name)] += suspects
            for payload in suspects:
                self.cards[payload].chances += suspects[payload]
            suspects.clear()

    def saw(self, call: Call, reply: Any) -> None:
        """A script was run. Its reply must be the one that follows from what was before."""
        happened: Callable[[Call, Any], None] | None = getattr(self, f"_{call.name}", None)
        if happened is not None:
            assert not isinstance(reply, Exception), (call.name, reply)
            happened(call, reply)

    def _take(self, key: str, payload: bytes) -> bool:
        """Remove one item; False where there is none."""
        if self.lists[key][payload] <= 0:
            return False
        self.lists[key][payload] -= 1
        return True

    def _clear(self, payload: bytes) -> None:
        self.cards[payload] = Card(chances=max(0, self.copies(payload) - 1))

    def _owner_of(self, key: str) -> str:
        return key.removeprefix(self.keys.running(""))

    def end(self, owner: str, id: str) -> None:
        """Nothing runs under this claim any more."""
        self.running[owner].pop(id, None)

    def forget_running(self, owner: str, held: Container[str]) -> None:
        """What an owner does not hold, it does not run."""
        running = self.running[owner]
        for id in list(running):
            if id != RAN and id not in held:
                del running[id]

    def _heartbeat(self, call: Call, reply: Any) -> None:
        owner = call.args[0]
        assert (reply[0] == b"reaped") == (owner in self.reaped)
        if reply[0] == b"ok" and len(call.keys) == 6:  # it registers
            self.owners.add(owner)
            self.running[owner]
        if reply[0] == b"ok" and "stopping" in call.args:
            self.stopping.add(owner)

    def _mark(self, call: Call, reply: Any) -> None:
        owner = call.args[0]
        if reply:
            assert owner in self.owners
            self.owners.discard(owner)
            ran = len(self.what_runs(owner))
            self.reaped[owner] = Verdict(ran, owner in self.stopping)
            self.running[owner][RAN] = str(ran)
        else:
            self.notable["a mark came too late"] += 1

    def _leave(self, call: Call, reply: Any) -> None:
        owner = call.args[0]
        left = sum(sum(self.lists[key].values()) for key in call.keys[5:])
        assert reply == (-1 if owner in self.reaped else left)
        if reply == 0:
            self.owners.discard(owner)
            self.running.pop(owner, None)
            self.returned.pop(owner, None)

    def _claim(self, call: Call, reply: Any) -> None:
        owner = call.args[0]
        assert (reply is not None) == (owner in self.owners)
        if reply is None:
            return
        started, rows, *_ = reply
        for at, payload, mark in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
            queue = call.keys[int(at) + 2]
            private = self.keys.private(owner, queue.removeprefix(self.keys.prefix))
            assert self._take(queue, payload)
            assert (mark != 0) == self.cards[payload].counted
            self.lists[private][payload] += 1
        starts, ids = call.args[7], call.args[9:]
        assert started == min(starts, len(rows) // 3)
        for id, payload in zip(ids[:started], rows[1::3], strict=False):
            self.running[owner][id] = digest(payload)
            self.notable["started with its claim"] += 1

    def _probation(self, call: Call, reply: Any) -> None:
        (_, _, running, probation, private), (owner, name, _, id) = call.keys, call.args
        waiting = sum(self.lists[probation].values())
        expected = b"unregistered" if owner not in self.owners else b"ok" if waiting else b"none"
        assert reply[0] == expected
        if expected in (b"ok", b"none") and waiting <= 1:
            self.on_probation.discard(name)
        if expected == b"ok":
            assert self._take(probation, reply[1])
            self.lists[private][reply[1]] += 1
            self.running[self._owner_of(running)][id] = digest(reply[1])
            self.notable["a suspect has its turn"] += 1

    def begins(self, payload: bytes) -> None:
        """A job was started. Once it has struck as often as it may, that must not be."""
        card, limit = self.cards[payload], self.limit(payload)
        if limit is not None:
            # A suspect strike is never the last, so one that had neighbours runs twice at least.
            most = max(limit, 2)
            assert card.blamed < most + card.chances
            if not card.chances:
                assert card.runs < most, "it ended its owners as often as it may"
                assert card.runs + card.deployed < most + self.config.recovery_limit
        card.runs += 1

    def _ack(self, call: Call, reply: Any) -> None:
        settled, counted = call.args[0], 0
        for at in range(settled):
            private, running = call.keys[2 * at : 2 * at + 2]
            payload, counts, id = call.args[3 * at + 1 : 3 * at + 4]
            removed = self._take(private, payload)
            assert removed == (at + 1 not in reply)
            if removed:
                self.settled[payload] += 1
                card, owner = self.cards[payload], self._owner_of(running)
                if counts:
                    self._clear(payload)
                elif self.running[owner].get(id) == digest(payload):
                    card.runs -= 1  # it ended well, and is none of the next copy's
                if not counts and card.counted and owner in self.reaped:
                    card.left = True
            else:
                self.notable["an ack came too late"] += 1
            self.end(self._owner_of(running), id)
            counted += counts
        starting = zip(
            call.keys[2 * settled + counted :],
            call.args[3 * settled + 1 :: 2],
            call.args[3 * settled + 2 :: 2],
            strict=True,
        )
        for running, id, name in starting:
            owner = self._owner_of(running)
            self.running[owner][id] = name
            self.notable["started beside an ack" if settled else "started"] += 1

    def _requeue(self, call: Call, reply: Any) -> None:
        private, queue, _, _, running, probation = call.keys[:6]
        owner, number = self._owner_of(running), call.args[4]
        if number and self.returned.get(owner, 0) >= number:
            assert not any(reply), "it had been sent again meanwhile"
            return
        if number and (owner in self.owners or owner in self.reaped):
            self.returned[owner] = number
        for at, moved in enumerate(reply):
            payload, id = call.args[5 + 2 * at : 7 + 2 * at]
            known = self.running[owner].get(id) if id else None
            # An operator's drain knows of no claims.
            ran = [known] if id else self.what_runs(owner).values()
            if id:
                self.end(owner, id)
            assert moved == self._take(private, payload)
            if moved:
                card = self.cards[payload]
                self.lists[probation if card.probation else queue][payload] += 1
                if card.probation:
                    self.on_probation.add(call.args[0])
                card.counted = True
                card.runs -= digest(payload) in ran
            else:
                self.notable["a requeue came too late"] += 1

    def _recover(self, call: Call, reply: Any) -> None:
        private, queue, probation = call.keys[1], call.keys[2], call.keys[6]
        marked, owner, count = bool(call.args[0]), call.args[4], 0
        for expected, strikes, blame, suspect, id, payload in _recoveries(call.args[6:]):
            card, outcome = self.cards[payload], reply[count]
            count += 1
            # Blamed by another reaper, and then settled by its owner: as good as counted anew.
            has_struck = marked and bool(id) and self.running[owner].get(id) == STRUCK
            seen = -1 if has_struck else expected
            if not self._holds(marked, owner, seen, private, payload, outcome):
                continue
            self._judge(owner if marked else "", payload, blame, strikes)
            limit = self.limit(payload)
            assert bool(suspect) == bool(
                limit is not None
                and (
                    card.probation
                    or bool(blame and strikes >= limit - 1)
                    or card.recoveries + 1 >= self.config.recovery_limit
                )
            )
            if suspect:
                assert suspect == max(1, card.probation + (blame == "suspect"))
            card.strikes, card.recoveries = strikes, card.recoveries + 1
            card.probation, card.counted = suspect, True
            self._blamed(marked, owner, id, payload, blame)
            self.lists[probation if suspect else queue][payload] += 1
            if suspect:
                self.on_probation.add(call.args[3])
            self.notable[f"recovered, blame: {blame or 'none'}"] += 1
            assert limit is None or card.strikes < limit, "the last strike kills"

    def _kill(self, call: Call, reply: Any) -> None:
        (payload, marked, seen, name, text), id = call.args[:5], call.args[7]
        owner, record = self._owner_of(call.keys[10]), json.loads(text)
        ran = self.running[owner].get(id) or ""
        has_struck = bool(marked and id) and ran != name
        if not self._holds(
            bool(marked), owner, -1 if has_struck else seen, call.keys[8], payload, reply[0]
        ):
            return
        limit = self.limit(payload)
        assert limit == record["strikes"], "neither earlier nor later"
        assert record["history"][-1]["strike"] == "exact"
        self._judge(owner if marked else "", payload, "exact", record["strikes"])
        self._blamed(bool(marked), owner, id, payload, "exact")
        self.dead[payload] += 1
        self._clear(payload)
        self.notable["killed"] += 1

    def _holds(
        self, marked: bool, owner: str, seen: int, private: str, payload: bytes, outcome: bytes
    ) -> bool:
        """Whether a decision held; the job has left the private list then."""
        expected = (
            b"unmarked"
            if marked and owner not in self.reaped
            else b"recounted"
            if seen != self.cards[payload].recoveries
            else b"ok"
            if self._take(private, payload)
            else b"moved"
        )
        assert outcome == expected
        if expected != b"ok":
            self.notable[f"decision: {expected.decode()}"] += 1
        return expected == b"ok"

    def _judge(self, owner: str, payload: bytes, blame: str, strikes: int) -> None:
        """Is it as DESIGN has it, and as it really was? Without an owner: its child was lost."""
        card, limit = self.cards[payload], self.limit(payload)
        assert blame == (self.blame(owner, payload) if owner else "exact")
        most = limit - 1 if blame == "suspect" and limit is not None else card.strikes + 1
        assert strikes == (
            max(card.strikes, min(card.strikes + 1, most)) if blame else card.strikes
        )
        card.blamed += bool(blame)
        if blame == "exact":
            assert self.culprits.get(owner, payload) == payload, "another job has done it"
            if payload not in self.killers:
                self.unlucky.add(payload)

    def _blamed(self, marked: bool, owner: str, id: str, payload: bytes, blame: str) -> None:
        """A claim is over; what ran when its owner died remains one of those that ran."""
        if self.running[owner].get(id) == digest(payload) and not blame:
            self.cards[payload].runs -= 1
            self.cards[payload].deployed += 1
        if not marked:
            self.end(owner, id)
        elif id:
            self.running[owner][id] = STRUCK

    def _revive(self, call: Call, reply: Any) -> None:
        payload = call.args[1]
        assert reply == 1
        assert self.dead[payload]
        self.dead[payload] -= 1
        self.lists[call.keys[5]][payload] += 1
        self._clear(payload)


def _recoveries(args: Sequence[Any]) -> Iterator[tuple[int, int, str, int, str, bytes]]:
    for at in range(0, len(args), 6):
        payload, expected, strikes, blame, suspect, id = args[at : at + 6]
        yield expected, strikes, blame, suspect, id, payload
