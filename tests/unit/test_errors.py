"""The error tree: its classes, their fields, and the drawing in the docstring."""

import copy
import pickle
import re

import pytest

from txlayer import errors
from txlayer.errors import BrokerUnavailableError, RefusedRecordError, TxLayerError, UsageError


def classes(root: type[TxLayerError] = TxLayerError) -> list[type[TxLayerError]]:
    """Every class of the tree, parents first."""
    own = [cls for cls in root.__subclasses__() if cls.__module__ == errors.__name__]
    return [root, *(found for cls in own for found in classes(cls))]


def own_fields(cls: type[TxLayerError]) -> list[str]:
    """The fields that its parent has not."""
    parent = cls.__mro__[1]
    inherited = parent.field_names if issubclass(parent, TxLayerError) else ()
    return [name for name in cls.field_names if name not in inherited]


def drawn_tree() -> dict[str, tuple[str, list[str]]]:
    """{class: (parent, own fields)} as the docstring draws it."""
    tree: dict[str, tuple[str, list[str]]] = {}
    path: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").partition("::\n")[2].partition("\n\nA class")[0].splitlines():
        fields = re.findall(r"\.([a-z_]+)", line)
        name = re.search(r"[A-Z]\w*Error\b", line)
        if name is None:
            if path and fields:
                tree[path[-1][1]][1].extend(fields)
            continue
        while path and path[-1][0] >= name.start():
            path.pop()
        tree[name[0]] = (path[-1][1] if path else "Exception", fields)
        path.append((name.start(), name[0]))
    return tree


@pytest.mark.parametrize("cls", classes())
def test_an_error_survives_pickling_and_copying(cls: type[TxLayerError]) -> None:
    error = cls("what happened", **{name: f"the {name}" for name in cls.field_names})

    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert cls is type(twin)
        assert str(error) == str(twin)
        assert error.fields == twin.fields
        assert [f"the {name}" for name in cls.field_names] == [getattr(twin, name) for name in cls.field_names]


@pytest.mark.parametrize("cls", classes())
def test_fields_are_keywords_and_nothing_else_is_taken(cls: type[TxLayerError]) -> None:
    with pytest.raises(TypeError):
        cls("what happened", "a field by position")  # type: ignore[call-arg] # the promise under test
    with pytest.raises(TypeError, match="has no field no_such_field"):
        cls("what happened", no_such_field=1)


@pytest.mark.parametrize("cls", classes())
def test_a_field_that_was_not_given_is_none_and_not_shown(cls: type[TxLayerError]) -> None:
    error = cls()

    assert dict.fromkeys(cls.field_names) == error.fields
    assert cls.__name__ == str(error)


def test_fields_make_the_message() -> None:
    error = BrokerUnavailableError("no broker answered", bootstrap_servers="127.0.0.1:1", waited_ms=0)

    assert "no broker answered (bootstrap_servers='127.0.0.1:1', waited_ms=0)" == str(error)
    assert "waited_ms=0" == str(BrokerUnavailableError(waited_ms=0))


def test_every_class_has_its_parents_fields() -> None:
    for cls in classes():
        for parent in cls.__mro__[1:]:
            if issubclass(parent, TxLayerError):
                assert set(parent.field_names) <= set(cls.field_names), cls


def test_the_drawn_tree_is_the_tree_of_classes() -> None:
    expected = {cls.__name__: (cls.__mro__[1].__name__, own_fields(cls)) for cls in classes()}

    assert expected == drawn_tree()


def test_every_error_is_documented_and_public() -> None:
    assert [] == [cls.__name__ for cls in classes() if not cls.__doc__]
    assert len({cls.__name__ for cls in classes()}) == len(classes())


def test_a_caller_can_catch_what_to_do_next() -> None:
    with pytest.raises(errors.PoisonMessageError) as caught:
        raise RefusedRecordError("too large", topic="orders", size_bytes=2, size_bytes_max=1)

    assert ("orders", None) == (caught.value.fields["topic"], caught.value.reason)
    assert not isinstance(caught.value, UsageError)
