"""Ids, nonces and partitions of new transactions. A producer takes its time and random numbers only here."""

import os
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from enum import Enum
from functools import lru_cache
from typing import NamedTuple, TypedDict

from txlayer.config import IMMUNITY_MAX, milliseconds
from txlayer.core import codec
from txlayer.core.messages import (
    NONCE_LENGTH,
    RESERVED_HEADER_PREFIX,
    TAIL_DIGITS,
    UUID_LENGTH,
    HalfOptions,
    Message,
    OrderMode,
    UnresolvedAction,
    check_txn_id,
    key_tails,
    uuid7_head,
)
from txlayer.core.partitions import half_partition, head_share, key_hash, key_murmur_of, share_count, tail_shares
from txlayer.errors import UsageError

_TAILS_AT_ONCE = 512  # ids made ahead: one call for random bytes serves all of them
_STICKY_MS = 8
"""Ids drawn within this many milliseconds share a partition, which gives fewer and larger requests to the broker."""
_TAILS_PER_SHARE = 16  # the average number of ids drawn at once, with many partitions

_ID_TAIL_LENGTH = UUID_LENGTH - len(uuid7_head(0))

_PLACEMENTS_KEPT = 8_192  # ordering keys whose hash is cached: hashing one takes longer than storing its message


_BY_COMMIT = ("commit", OrderMode.COMMIT)


class KeyChoice(Enum):
    """The source of a transaction's ordering key if none is given."""

    OF_MESSAGES = "of messages"  #: the common key of all its messages, if they have one


OF_MESSAGES = KeyChoice.OF_MESSAGES

OrderingKey = bytes | str | KeyChoice | None  # the values of `ordering_key`; None: no order


class Placement(NamedTuple):
    """The partition and options that follow from an ordering key and a transaction's settings."""

    partition: int | None  # of half and op; None: by the transaction id
    options: str  # of each half header, encoded
    ordering_key: bytes | None
    open_wish: tuple[str | OrderMode, timedelta | None, str | None] | None = None
    """Order, immunity and `unresolved` of a placement that the messages' own key will decide."""

    def options_of(
        self, *, has_key: bool, partition: int | None, timestamp_ms: int | None, deliver_at_ms: int | None = None
    ) -> str:
        """The options of one message's half header, encoded."""
        murmur = key_murmur_of(self.ordering_key, has_key=has_key, partition=partition)
        own = codec.encode_options(HalfOptions(partition=partition, timestamp_ms=timestamp_ms, key_murmur=murmur))
        timed = codec.encode_options(HalfOptions(deliver_at_ms=deliver_at_ms))  # first: see `codec.half_header`
        return ",".join(filter(None, (timed, self.options, own)))


ANYWHERE = Placement(None, "", None)  # no ordering key and no options
BY_MESSAGES = Placement(None, "", None, open_wish=("commit", None, None))
"""No settings: the messages' own key decides. The most frequent placement by far."""


class TransactionOptions(TypedDict, total=False):
    """What every way to send a transaction takes; `TransactionalProducer.transaction` describes them."""

    ordering_key: OrderingKey
    order: str | OrderMode
    immunity: timedelta | None
    unresolved: str | None
    check_with: Iterable[str] | None
    query_id: str | None
    block: bool


class Entry(NamedTuple):
    """The options of a new transaction, checked."""

    txn_id: str | None
    placement: Placement
    asked: str  # options of the first half header alone, encoded: what questions carry, and the user's id
    may_wait: bool
    is_plain: bool = False  # nothing was asked for


QUERY_ID_BYTES_MAX = 200
"""Longest `query_id`, in UTF-8: with percent-encoding it takes three times as much of a half header."""


def check_with_option(wanted: Iterable[str]) -> str:
    """What questions carry, encoded.

    Raises:
        UsageError: a part is none that there is, or there are too many. Nothing was sent.
    """
    if isinstance(wanted, str | bytes):
        raise UsageError(f"check_with is a tuple of names, not {wanted!r}")
    try:
        parts = tuple(wanted)
        names = ((part, part.removeprefix("headers:")) for part in parts)
        refused = [p for p, n in names if n in codec.TRACE_HEADERS or n.startswith(RESERVED_HEADER_PREFIX)]
        encoded = codec.encode_check_with(parts)
    except (ValueError, AttributeError, TypeError) as exc:
        named = "key, tags, query_id, content and headers:NAME"
        raise UsageError(f"check_with: questions carry {named}, not {exc}") from exc
    if refused:
        raise UsageError(f"check_with: no question carries {refused[0]!r}")
    if len(encoded) > codec.CHECK_WITH_LENGTH_MAX:
        raise UsageError(f"check_with: the names of its headers are too long (together {len(encoded)} bytes)")
    return encoded


def asked_options(check_with: str, query_id: str | None) -> str:
    """The options of the first half header for an encoded `check_with` and the user's id of the transaction.

    Raises:
        UsageError: the id is not 1 to 200 bytes of text. Nothing was sent.
    """
    if query_id is not None:
        is_text = isinstance(query_id, str) and query_id.isprintable()
        if not is_text or not 0 < len(query_id.encode()) <= QUERY_ID_BYTES_MAX:
            raise UsageError(f"query_id: 1 to {QUERY_ID_BYTES_MAX} bytes of printable text, not {query_id!r}")
    return codec.encode_options(HalfOptions(check_with=check_with, query_id=query_id))


class Identity:
    """Draws ids and chooses partitions for one producer. Thread-safe."""

    def __init__(self, *, partition_count: int) -> None:
        self._partition_count = partition_count
        # An id is a head (the time) and a tail; both decide the partition. Tails are kept by their share in it.
        self._share_count = share_count(partition_count)
        self._tails: list[list[str]] = [[] for _ in range(self._share_count)]
        self._is_sticky = self._share_count == partition_count
        self._now: tuple[int, tuple[str, list[str], int | None]] = (-1, ("", [], None))
        # Producers that start together do not move from partition to partition together.
        self._first_partition = int.from_bytes(os.urandom(2))
        self._placement = lru_cache(_PLACEMENTS_KEPT)(self._find_placement)

    def draw(self, txn_id: str | None, at_ms: int) -> str:
        """A new "id/nonce"; the id is `txn_id`, or a UUIDv7 of `at_ms`; UsageError: `txn_id` is not valid."""
        head, tails, _ = self._at(at_ms)
        tail = self._draw_tail(tails)
        if txn_id is not None:
            return f"{check_txn_id(txn_id)}/{tail[-NONCE_LENGTH:]}"
        return head + tail

    def draw_with_partition(self, at_ms: int) -> tuple[str, int]:
        """A new "id/nonce" with a UUIDv7 of `at_ms`, and the partition of a transaction without an ordering key."""
        head, tails, partition = self._at(at_ms)
        key = head + self._draw_tail(tails)
        return key, self.partition(ANYWHERE, key) if partition is None else partition

    def _at(self, at_ms: int) -> tuple[str, list[str], int | None]:
        """The head of the ids of this millisecond, the suitable tails, and the partition of both."""
        seen_ms, at = self._now
        if seen_ms != at_ms:
            head = uuid7_head(at_ms)
            partition = at_ms // _STICKY_MS + self._first_partition
            share = head_share(head, tail_length=_ID_TAIL_LENGTH) ^ partition
            at = (
                head,
                self._tails[share % self._share_count],
                partition % self._partition_count if self._is_sticky else None,
            )
            self._now = (at_ms, at)
        return at

    def _draw_tail(self, tails: list[str]) -> str:
        while True:
            try:
                return tails.pop()  # atomic: each tail goes to one thread
            except IndexError:
                self._draw_tails()

    def _draw_tails(self) -> None:
        count = max(_TAILS_AT_ONCE, _TAILS_PER_SHARE * self._share_count)
        drawn = key_tails(os.urandom(count * TAIL_DIGITS // 2).hex())
        joined = "".join(drawn).encode()
        step = len(drawn[0])
        id_tails = [joined[at : at + _ID_TAIL_LENGTH] for at in range(0, len(joined), step)]
        shares = tail_shares(id_tails, head_length=UUID_LENGTH - _ID_TAIL_LENGTH)
        modulo, kept = self._share_count, self._tails
        for tail, share in zip(drawn, shares, strict=True):
            kept[share % modulo].append(tail)
        for tails in kept:
            del tails[_TAILS_AT_ONCE:]

    def partition(self, placement: Placement, key: str) -> int:
        """The half partition of the transaction `key` ("id/nonce") with this placement."""
        if placement.partition is not None:
            return placement.partition
        return half_partition(ordering_key=None, txn_id=key[: -NONCE_LENGTH - 1], partition_count=self._partition_count)

    def placement_of(self, placement: Placement, messages: Sequence[Message]) -> Placement:
        """The placement itself, or, if the messages decide it, that of their common key.

        Raises:
            UsageError: the messages have no common key, and the order needs one. Nothing was sent.
        """
        if placement.open_wish is None:
            return placement
        key = common_key(messages)
        if key is None and placement is BY_MESSAGES:
            return ANYWHERE
        return self._placement(key, *placement.open_wish)

    def placement(
        self,
        ordering_key: OrderingKey,
        order: str | OrderMode,
        immunity: timedelta | None,
        unresolved: str | None = None,
    ) -> Placement:
        """The placement of a transaction with these settings; `placement_of` must follow once its messages are known.

        Raises:
            UsageError: a setting is not valid. Nothing was sent.
        """
        if ordering_key is OF_MESSAGES:
            if immunity is None and unresolved is None and order in _BY_COMMIT:
                return BY_MESSAGES
            if immunity is not None:
                _immunity_ms(immunity)
            _unresolved_action(unresolved)
            return Placement(None, "", None, open_wish=(_order_mode(order), immunity, unresolved))
        if ordering_key is None and immunity is None and unresolved is None and order in _BY_COMMIT:
            return ANYWHERE
        if not isinstance(ordering_key, bytes | str | None):
            raise UsageError(f"an ordering key is bytes or str, not {type(ordering_key).__name__}")
        try:
            return self._placement(ordering_key, order, immunity, unresolved)
        except TypeError as exc:  # it cannot be looked up
            raise UsageError(f"order, immunity and unresolved: {exc}. Nothing was sent") from exc

    def _find_placement(
        self,
        ordering_key: bytes | str | None,
        order: str | OrderMode,
        immunity: timedelta | None,
        unresolved: str | None,
    ) -> Placement:
        mode = _order_mode(order)
        try:
            key = ordering_key.encode() if isinstance(ordering_key, str) else ordering_key
        except UnicodeEncodeError as exc:
            raise UsageError(f"ordering_key: {exc}. Nothing was sent") from exc
        if mode is OrderMode.PREPARE and key is None:
            raise UsageError('order="prepare" orders the transactions of one ordering key; name ordering_key')
        options = codec.encode_options(
            HalfOptions(
                key_hash=None if key is None else key_hash(key),
                order=mode,
                immunity_ms=None if immunity is None else _immunity_ms(immunity),
                unresolved=_unresolved_action(unresolved),
            )
        )
        if key is None:
            return Placement(None, options, None)
        partition = half_partition(ordering_key=key, txn_id="", partition_count=self._partition_count)
        return Placement(partition, options, key)


def common_key(messages: Sequence[Message]) -> bytes | None:
    """The common key of all messages; None if they have none, or several."""
    common: bytes | None = None
    for message in messages:
        key: object = message.key
        if isinstance(key, str):
            key = key.encode(errors="surrogatepass")  # such a message is not sent; a later check reports it
        elif isinstance(key, bytearray | memoryview):
            key = bytes(key)
        if not isinstance(key, bytes) or (common is not None and key != common):
            return None
        common = key
    return common


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _order_mode(order: str | OrderMode) -> OrderMode:
    try:
        return OrderMode(order)
    except ValueError as exc:
        raise UsageError(f'order is "commit" or "prepare", not {order!r}') from exc


def _unresolved_action(unresolved: str | None) -> UnresolvedAction | None:
    try:
        return None if unresolved is None else UnresolvedAction(unresolved)
    except ValueError as exc:
        raise UsageError(f'unresolved is "park", "rollback" or "commit", not {unresolved!r}') from exc


def _immunity_ms(immunity: timedelta) -> int:
    if not isinstance(immunity, timedelta) or not timedelta(0) < immunity <= IMMUNITY_MAX:
        raise UsageError(f"immunity is a timedelta of more than 0 and at most 7 days, not {immunity!r}")
    return milliseconds(immunity)
