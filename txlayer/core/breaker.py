"""A breaker: while most attempts at the messages of a topic fail, only one message at a time is tried.

The failures of that time are the dependency's, not the messages': no attempt is counted.
"""

from collections import deque
from dataclasses import InitVar, dataclass
from enum import Enum

from txlayer.core.retry import Delay, set_lengths
from txlayer.errors import ConfigError

SLICE_COUNT = 10
"""Parts of a window, each counted as a whole: a breaker keeps so many numbers, however many attempts there are."""
NO_LIMIT = 1 << 62


class BreakerState(Enum):
    """What may begin."""

    CLOSED = "closed"  #: everything
    OPEN = "open"  #: nothing, until it is time for a probe
    PROBING = "probing"  #: nothing: one message is being tried


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """When a breaker opens, and how often it lets one message through then.

    Args:
        window: over which attempts are counted, as a `timedelta`.
        probe_interval: from a probe that failed to the next one, as a `timedelta`.

    Raises:
        ConfigError: a value is out of range.
    """

    failed_share: float = 0.5
    """It opens when at least this share of the attempts of the window failed."""
    attempt_count_min: int = 20
    """With fewer attempts in the window it does not open: one message that always fails is no outage."""
    window_ms: int = 10_000
    probe_interval_ms: int = 5_000
    window: InitVar[Delay | None] = None
    probe_interval: InitVar[Delay | None] = None

    def __post_init__(self, window: Delay | None, probe_interval: Delay | None) -> None:
        set_lengths(self, window=window, probe_interval=probe_interval)
        for name, is_right, expected in (
            ("failed_share", 0 < self.failed_share <= 1, "above 0, at most 1"),
            ("attempt_count_min", self.attempt_count_min >= 1, "at least 1"),
            ("window_ms", self.window_ms >= SLICE_COUNT, f"at least {SLICE_COUNT}"),
            ("probe_interval_ms", self.probe_interval_ms >= 1, "at least 1"),
        ):
            if not is_right:
                raise ConfigError(name=name, value=getattr(self, name), expected=expected)


class Breaker:
    """The breaker of one topic. Not thread-safe. Times are milliseconds that never decrease."""

    def __init__(self, policy: BreakerPolicy) -> None:
        self._policy = policy
        self._slices: deque[tuple[int, int, int]] = deque()  # (number of the slice, attempts, failed ones)
        self._probe_at_ms = 0
        self.state = BreakerState.CLOSED
        self.opened_count = 0
        """How often it went from closed to open."""

    @property
    def is_closed(self) -> bool:
        """True if everything may begin."""
        return self.state is BreakerState.CLOSED

    @property
    def next_at_ms(self) -> int:
        """From when on something may begin; while a probe runs, only its end says."""
        if self.state is BreakerState.PROBING:
            return NO_LIMIT
        return self._probe_at_ms if self.state is BreakerState.OPEN else 0

    @property
    def probe_interval_ms(self) -> int:
        """From a probe that failed to the next one."""
        return self._policy.probe_interval_ms

    def room(self, now_ms: int) -> int:
        """How many messages may begin: 1 is a probe if it is not closed; call `begin_probe` then."""
        if self.is_closed:
            return NO_LIMIT
        return int(self.next_at_ms <= now_ms)

    def begin_probe(self) -> None:
        """One message is tried."""
        self.state = BreakerState.PROBING

    def probed(self, *, is_well: bool | None, now_ms: int) -> None:
        """The probe has ended. None: it said nothing, because it did not begin or the message itself is bad."""
        if is_well:
            self.state = BreakerState.CLOSED
            self._slices.clear()
            return
        self.state = BreakerState.OPEN
        self._probe_at_ms = now_ms if is_well is None else now_ms + self._policy.probe_interval_ms

    def ended(self, *, count: int, failed_count: int, now_ms: int) -> None:
        """So many attempts ended, so many of them failed. What began before it opened says nothing new."""
        if not self.is_closed or not count:
            return
        policy, slices = self._policy, self._slices
        number = now_ms * SLICE_COUNT // policy.window_ms
        if slices and slices[-1][0] == number:
            _, before, failed_before = slices.pop()
            count, failed_count = count + before, failed_count + failed_before
        slices.append((number, count, failed_count))
        while slices[0][0] <= number - SLICE_COUNT:
            slices.popleft()
        ended = sum(each[1] for each in slices)
        failed = sum(each[2] for each in slices)
        if ended >= policy.attempt_count_min and failed >= policy.failed_share * ended:
            self.state = BreakerState.OPEN
            self.opened_count += 1
            self._probe_at_ms = now_ms + policy.probe_interval_ms
