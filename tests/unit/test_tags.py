"""Which messages a consumer wants."""

import pytest

from txlayer.core.messages import TagFilter, parse_tags
from txlayer.errors import ConfigError


@pytest.mark.parametrize("expression", ["TagA || TagC", "TagA||TagC", "  TagC ||TagA  "])
def test_tags_are_alternatives(expression: str) -> None:
    wanted = parse_tags(expression)

    assert [True, False, True, False] == [wanted.accepts(tag) for tag in (b"TagA", b"TagB", b"TagC", None)]


@pytest.mark.parametrize("expression", ["*", "", "  ", " * "])
def test_a_star_or_nothing_is_every_message(expression: str) -> None:
    wanted = parse_tags(expression)

    assert TagFilter() == wanted
    assert wanted.accepts(None)
    assert wanted.accepts(b"TagA")


def test_tags_are_utf_8() -> None:
    assert parse_tags("größe").accepts("größe".encode())


@pytest.mark.parametrize("expression", ["||", "TagA ||", "|| TagA", "a || * ", "a | b", "a ||| b"])
def test_an_expression_out_of_form_is_refused(expression: str) -> None:
    with pytest.raises(ConfigError) as told:
        parse_tags(expression)

    assert ("tags", expression, '"TagA || TagC", or "*"') == (told.value.name, told.value.value, told.value.expected)
