"""Which kills of a job on an object store are judged by one run."""

import pytest

from tests.support.object_store import Act, Change, Listing, Read, State, is_alike, marked

BEGUN = {"a/x": "1", "a/_new": "2"}


def listing(delimiter: str = "/", limit: int = 5000) -> Listing:
    return Listing("a/", delimiter, limit, BEGUN)


ENDED: list[Act] = [Change("a/x", None), Change("a/_new", None)]


@pytest.mark.parametrize(
    ("other", "acts", "expected"),
    [
        ({"a/x": "1"}, [listing()], True),  # no reader looks at a hidden name
        ({"a/x": "1"}, [Read("a/_new")], False),
        ({"a/x": "1"}, [Change("a/_new", "3"), Read("a/_new")], True),
        ({"a/x": "1"}, [Read("a/_new"), Change("a/_new", "3")], False),
        ({**BEGUN, "a/y": "1"}, [listing()], False),
        ({**BEGUN, "b": "1"}, [listing()], True),
        ({**BEGUN, "a/x": "3"}, [listing()], False),
        # Whether a folder is there: so many objects make no difference, none at all does.
        ({**BEGUN, "a/y": "1"}, [listing(limit=2)], True),
        ({}, [listing(limit=2)], False),
        # What is listed to be deleted is deleted, whatever it is.
        ({"a/y": "1"}, [listing(""), *ENDED, Read("a/y"), Read("a/x")], True),
        ({"a/y": "1"}, [listing(""), Read("a/x"), *ENDED], False),
        ({"a/y": "1"}, [listing(""), *ENDED[:1]], False),
        ({"a/y": "1", "b": "1"}, [listing(""), *ENDED, Read("b")], False),
    ],
)
def test_a_kill_stands_for_another_where_every_answer_is_the_same(
    other: State, acts: list[Act], expected: bool
) -> None:
    assert expected == is_alike(BEGUN, other, marked(acts))
