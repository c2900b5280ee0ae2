"""What a consumer holds of one job, and each way in which it may leave this process."""

from __future__ import annotations

from json import JSONDecoder
from typing import TYPE_CHECKING, Any

from kombu.log import get_logger
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import object_hook

from ..model.job import CARRIED, EARLIER, Carried, Claimed, Earlier

if TYPE_CHECKING:
    from ..model.dead_job import DeadJob
    from ..owner.in_flight.in_flight import InFlight
    from ..owner.membership import Membership

logger = get_logger(__name__)

#: kombu makes a decoder for each message.
_plain, _typed = JSONDecoder().decode, JSONDecoder(object_hook=object_hook).decode


def loads(payload: bytes | str) -> Any:
    """``kombu.utils.json.loads``; the hook is called for each dict, and few messages need it."""
    text = bytes_to_str(payload)
    return (_typed if '"__type__"' in text else _plain)(text)


class Delivery(dict[str, Any]):
    """A decoded message that stands for its claim; kombu keeps it as ``message._raw``."""

    settled = False  # its ack is on its way, and kombu is told in a moment
    tag: Any = None  # under which kombu knows it

    def __init__(self, claimed: Claimed, channel: Any) -> None:
        super().__init__(loads(claimed.job.payload))
        self.claimed, self.job, self.channel = claimed, claimed.job, channel
        self.membership: Membership = channel.membership
        self.in_flight: InFlight = self.membership.in_flight
        again = claimed.earlier is not None
        self["properties"]["delivery_info"]["redelivered"] = again
        headers = self["headers"] = self.get("headers") or {}
        headers.pop(EARLIER, None)  # what we say of a delivery, nobody else can say
        strikes = Carried.of(headers).strikes if CARRIED in headers else 0
        if again:
            headers["redelivered"] = True
        if again or strikes:
            headers[EARLIER] = (claimed.earlier or Earlier()).told(strikes)

    @property
    def is_open(self) -> bool:
        return self.channel.qos.delivery(self.tag) is self

    def ack(self) -> None:
        """Settle it: with the loop's next turn where there is one, else at once.

        In the callback of the last job at once, too: the next claim, which is waited for, comes
        later.
        """
        self.settled = True
        channel, fetch, in_flight = self.channel, self.channel.fetch, self.in_flight
        in_flight.ack(self.claimed)
        # Where nobody comes by later to read the answer, it is waited for.
        unattended = channel.closed or not channel.lists.names
        if unattended or not fetch.poller.comes_back or fetch.delivers_the_last:
            try:
                in_flight.flush(wait=unattended)
            except (*channel.connection_errors, channel.ResponseError) as exc:
                logger.warning("An ack could not be sent yet (%s); it is kept and sent again.", exc)
        fetch.poller.wake()

    def requeue(self, where: str = "front") -> None:
        is_open = self.is_open
        self.forget()
        if is_open:
            self.in_flight.end(self.job)
            self.channel.fetch.requeue([self.job], where)

    def cut_short(self, reason: str, sender: Any, limits: Any, **how: Any) -> DeadJob | None:
        """Recover it or kill it; arguments, errors and result as of ``LostRuns``."""
        if not self.is_open:
            return None
        dead = self.membership.lost_runs.recover_or_kill(self.job, reason, sender, limits, **how)
        self.forget()
        return dead

    def quarantine(self, reason: str) -> None:
        if self.is_open:
            self.membership.lost_runs.quarantine(self.job, reason)
            self.forget()

    def bury(self, reason: str) -> DeadJob | None:
        """Move what nobody can run to the dead set; its caller is told by who asks for it."""
        if not self.is_open:
            return None
        dead = self.membership.lost_runs.bury(self.job, reason)
        self.forget()
        return dead

    def forget(self) -> None:
        """It has left: kombu need not remember it."""
        self.channel.qos.forget(self.tag)


def delivery_of(message: Any) -> Delivery | None:
    """The delivery behind kombu's message; None for what is not fetched reliably."""
    raw = getattr(message, "_raw", None)
    return raw if isinstance(raw, Delivery) else None
