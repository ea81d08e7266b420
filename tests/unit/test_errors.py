"""The error tree (its classes, their fields, the drawing in the docstring), and Kafka's codes: every number is the client's own."""

import copy
import pickle
import re
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from txlayer import errors
from txlayer.adapters.errors import (
    STALE_LEADER_CODES,
    UNAVAILABLE_CODES,
    Code,
    TranslatedWriter,
    translate_error,
    translate_fatal,
    translate_unwritten,
)
from txlayer.adapters.errors import ClientError as AnyClientError
from txlayer.adapters.kafka.client import watermarks
from txlayer.adapters.memory.world import ClientError
from txlayer.adapters.readers import TranslatedMember
from txlayer.config import ClientConfig
from txlayer.errors import (
    BrokerUnavailableError,
    FencedError,
    InstanceFencedError,
    NotAuthorisedError,
    RefusedRecordError,
    RetriableError,
    TxLayerError,
    UsageError,
)


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


# librdkafka's own list of errors that it answers by asking for the leaders again, or by trying again
# (`rd_kafka_err_action`), without those that say something of a record or a group.
PASSING_BY_ITSELF = {
    Code.LOCAL_DESTROY_BROKER: BrokerUnavailableError,
    Code.LOCAL_SSL: BrokerUnavailableError,
    Code.LOCAL_TRANSPORT: BrokerUnavailableError,
    Code.LOCAL_TIMED_OUT: BrokerUnavailableError,
    Code.LOCAL_TIMED_OUT_QUEUE: BrokerUnavailableError,
    Code.LOCAL_WAIT_COORD: BrokerUnavailableError,
    Code.BROKER_NOT_AVAILABLE: BrokerUnavailableError,
    Code.LEADER_NOT_AVAILABLE: BrokerUnavailableError,
    Code.NETWORK_EXCEPTION: BrokerUnavailableError,
    Code.REQUEST_TIMED_OUT: BrokerUnavailableError,
    Code.COORDINATOR_NOT_AVAILABLE: BrokerUnavailableError,
    Code.NOT_COORDINATOR: BrokerUnavailableError,
    Code.NOT_LEADER_FOR_PARTITION: RetriableError,
    Code.FENCED_LEADER_EPOCH: RetriableError,
    Code.UNKNOWN_LEADER_EPOCH: RetriableError,
    Code.REPLICA_NOT_AVAILABLE: RetriableError,
    Code.OFFSET_NOT_AVAILABLE: RetriableError,
    Code.KAFKA_STORAGE_ERROR: RetriableError,
}


class Writer(TranslatedWriter):
    """A client that knows no other cause than the error itself."""

    def _cause(self, error: AnyClientError) -> AnyClientError:
        return error


class Silent:
    """A consumer whose questions end with this error."""

    def __init__(self, code: Code) -> None:
        self._error = KafkaError(int(code), "said")

    def get_watermark_offsets(self, *_: Any, **_named: Any) -> tuple[int, int]:
        raise KafkaException(self._error)


def test_a_question_to_a_leader_that_is_not_there_just_then_may_be_asked_again() -> None:
    none_found = KafkaError(KafkaError._NOENT, "Failed to query partition leaders: No leaders found")

    assert RetriableError is type(translate_error(none_found, topic="orders"))


@pytest.mark.parametrize("code", [c for c in Code if c is not Code.NO_ERROR])
def test_a_code_has_the_clients_number_and_name(code: Code) -> None:
    assert int(code) == getattr(KafkaError, code.kafka_name)
    assert code.kafka_name == KafkaError(int(code)).name()


@pytest.mark.parametrize("code", [c for c in Code if c is not Code.NO_ERROR])
@pytest.mark.parametrize("flags", [(False, False), (True, False), (False, True)])
def test_an_error_means_the_same_whichever_client_reports_it(code: Code, flags: tuple[bool, bool]) -> None:
    is_fatal, is_abortable = flags
    theirs = KafkaError(int(code), "said", fatal=is_fatal, txn_requires_abort=is_abortable)
    ours = ClientError(code, "said", is_fatal=is_fatal, is_abortable=is_abortable)
    writer = Writer(bootstrap_servers="b", transactional_id="t", batch_bytes_max=1)
    member = TranslatedMember(group="g", bootstrap_servers="b", lost_to="it: begin anew")

    for said in (
        [translate_error(e, topic="orders") for e in (theirs, ours)],
        [translate_error(e, step="half", txn_id="id") for e in (theirs, ours)],
        [writer.translated(e) for e in (theirs, ours)],
        [writer.refusal(e, topic="orders", txn_key="k") for e in (theirs, ours)],
        [translate_unwritten(e, topic="ns.half", txn_id="id") for e in (theirs, ours)],
        [member.read_error(e) for e in (theirs, ours)],
        [member.store_error(e) for e in (theirs, ours)],
    ):
        assert type(said[0]) is type(said[1])
        assert str(said[0]) == str(said[1])


@pytest.mark.fault("consumer: two processes have one `instance_id`")
def test_a_client_that_failed_for_good_says_so_where_it_reads_and_where_it_stores() -> None:
    # Only a client with an `instance_id` can: when another one has joined with it.
    member = TranslatedMember(group="g", bootstrap_servers="b", lost_to=None)
    error = KafkaError(int(Code.LOCAL_FATAL), "Commit failed: Local: Fatal error")

    assert isinstance(member.read_error(error), InstanceFencedError)
    assert isinstance(member.store_error(error, topic="orders"), InstanceFencedError)


@pytest.mark.parametrize("code", list(PASSING_BY_ITSELF))
def test_what_passes_by_itself_can_be_tried_again(code: Code) -> None:
    error = translate_error(ClientError(code, "said", is_fatal=False, is_abortable=False))

    assert type(error) is PASSING_BY_ITSELF[code]
    assert isinstance(error, RetriableError)


def test_a_partition_that_the_client_does_not_know_now_may_be_asked_about_again() -> None:
    consumer = cast("Consumer", Silent(Code.LOCAL_UNKNOWN_PARTITION))

    with pytest.raises(RetriableError) as raised:
        watermarks(consumer, ("orders", 0), config=ClientConfig(), timeout_s=1)

    assert RetriableError is raised.type
    error = ClientError(Code.LOCAL_UNKNOWN_PARTITION, "said", is_fatal=False, is_abortable=False)
    assert RefusedRecordError is type(translate_error(error, topic="orders"))


@pytest.mark.parametrize(
    ("code", "kind"),
    [(Code.CLUSTER_AUTHORIZATION_FAILED, NotAuthorisedError), (Code.INVALID_PRODUCER_EPOCH, FencedError)],
)
def test_a_client_that_may_write_nothing_has_no_newer_owner(code: Code, kind: type[TxLayerError]) -> None:
    error = ClientError(code, "said", is_fatal=True, is_abortable=False)

    assert kind is type(translate_fatal(error))
    assert FencedError is type(translate_unwritten(error, topic="ns.op", txn_id="t"))  # it may be stored


def test_an_end_that_no_broker_tells_is_a_broker_that_is_away() -> None:
    consumer = cast("Consumer", Silent(Code.LOCAL_TRANSPORT))

    with pytest.raises(BrokerUnavailableError):
        watermarks(consumer, ("orders", 0), config=ClientConfig(), timeout_s=1)


def test_no_code_is_both_a_broker_that_is_away_and_a_leader_that_moved() -> None:
    assert UNAVAILABLE_CODES.isdisjoint(STALE_LEADER_CODES)
