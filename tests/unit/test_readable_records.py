"""Records whose headers the client cannot read are replaced, and never asked twice: the second answer has holes in it."""

import pytest

from txlayer.adapters.kafka.client import readable


class FakeRecord:
    """One whose headers can be asked for, or cannot."""

    def __init__(self, name: str, error: Exception | None = None) -> None:
        self.name = name
        self.ask_count = 0
        self._error = error

    def headers(self) -> list[tuple[str, bytes | None]]:
        """Its headers, or what the client raises."""
        self.ask_count += 1
        if self._error is not None:
            raise self._error
        return [(self.name, b"v")]


def no_text() -> Exception:
    """As the client's."""
    return UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")


@pytest.mark.parametrize("bad", [(), (0,), (3,), (1, 2), (0, 1, 2, 3)], ids=["none", "first", "last", "two", "all"])
def test_records_with_unreadable_headers_are_replaced_where_they_stand(bad: tuple[int, ...]) -> None:
    given = [FakeRecord(f"r{n}", no_text() if n in bad else None) for n in range(4)]

    found = readable(list(given))

    assert [f"r{n}" for n in range(4)] == [record.name for record in found]
    assert [[] if n in bad else [(f"r{n}", b"v")] for n in range(4)] == [record.headers() for record in found]
    assert [1] * len(bad) == [given[n].ask_count for n in bad]


def test_a_system_error_of_the_client_counts_as_unreadable() -> None:
    (found,) = readable([FakeRecord("r", SystemError("returned a result with an exception set"))])

    assert [] == found.headers()
