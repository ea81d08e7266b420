"""What the options of `txlayer dlq` mean: times, names of dead letters, filters, authors."""

import pytest

from txlayer.cli.dlq import DeadLetterFilters
from txlayer.cli.options import parse_instant
from txlayer.core.dead_letters import DeadLetterReason
from txlayer.errors import ConfigError, UsageError
from txlayer.operate.dead_letters import DeadLetterFilter, DeadLetterPosition, parse_letter
from txlayer.operate.replay import author_of

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("2h", NOW_MS - 7_200_000),
        ("1.5s", NOW_MS - 1_500),
        ("30000d", 0),
        ("1970-01-01T00:00:01+00:00", 1_000),
        ("1970-01-01T01:00:01+01:00", 1_000),
        ("1970-01-02", 86_400_000),  # UTC when no zone is named
        ("1969-12-31", 0),
    ],
)
def test_a_time_is_so_long_ago_or_an_instant(text: str, at_ms: int) -> None:
    assert at_ms == parse_instant("--since", text, now_ms=NOW_MS)


@pytest.mark.parametrize("text", ["", "yesterday", "2 h", "h", "1.2.3s", "2026-13-01", "12:00"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_instant("--since", text, now_ms=NOW_MS)


def test_a_dead_letter_is_named_with_its_topic_or_with_the_only_one() -> None:
    assert DeadLetterPosition("shop.orders", 3, 17) == parse_letter("shop.orders/3:17", topics=[])
    assert DeadLetterPosition("orders", 3, 17) == parse_letter("3:17", topics=["orders"])
    assert "orders/3:17" == str(DeadLetterPosition("orders", 3, 17))


@pytest.mark.parametrize(
    ("text", "topics"),
    [
        ("3:17", []),
        ("3:17", ["a", "b"]),
        ("orders", []),
        ("orders/3", []),
        ("orders/-1:2", []),
        ("a/b/3:17", []),
        ("../3:17", []),
        ("orders/٣:17", []),
        ("", ["orders"]),
    ],
)
def test_what_names_no_dead_letter_is_refused(text: str, topics: list[str]) -> None:
    with pytest.raises(UsageError, match="names no dead letter"):
        parse_letter(text, topics=topics)


def test_a_key_is_text_or_hex() -> None:
    by_text = DeadLetterFilters(key="Zoë").read(now_ms=NOW_MS)
    by_hex = DeadLetterFilters(key_hex="5a6fc3ab").read(now_ms=NOW_MS)

    assert DeadLetterFilter("Zoë".encode()) == by_text == by_hex


def test_every_option_narrows() -> None:
    found = DeadLetterFilters(reason_code=[DeadLetterReason.REJECTED], since="2h", until="1h").read(now_ms=NOW_MS)

    assert not found.is_empty
    assert (NOW_MS - 7_200_000, NOW_MS - 3_600_000) == (found.since_ms, found.until_ms)


def test_a_request_has_an_author_and_a_name_of_its_own() -> None:
    first = author_of("x", operator=None, reason="ticket 12", request_id=None)
    second = author_of("x", operator="zoe", reason="ticket 12", request_id=None)

    assert "@" in first.text
    assert "zoe: ticket 12" == second.text
    assert first.request_id != second.request_id
    assert "t-12" == author_of("x", operator=None, reason="r", request_id="t-12").request_id
