"""A producer in an arena, and what it wrote there."""

from typing import Any

from tests.support.arena import Arena
from tests.support.logs import Seen, read_log
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.config import ClientConfig
from txlayer.core import codec
from txlayer.core.messages import HalfHeader, OpMessage, Resolution
from txlayer.producer.producer import TransactionalProducer

GROUP = "orders"


def made_for(arena: Arena, **settings: Any) -> TransactionalProducer:
    return TransactionalProducer(bootstrap_servers=arena.servers, group=GROUP, namespace=arena.namespace, **settings)


def halves(arena: Arena, txn_id: str) -> list[tuple[Seen, HalfHeader]]:
    """The half records of one id, in order."""
    found = []
    for record in read_log(arena.servers, [arena.topics.half])[arena.topics.half]:
        header = codec.decode_half_header(codec.half_header_of(record.headers) or b"")
        if isinstance(header, HalfHeader) and header.key.startswith(f"{txn_id}/"):
            found.append((record, header))
    return found


def ops(arena: Arena, txn_id: str) -> list[tuple[Seen, OpMessage]]:
    """The op lines of one id, in order."""
    found = []
    for record in read_log(arena.servers, [arena.topics.op])[arena.topics.op]:
        for line in (record.value or b"").decode().split("\n"):
            op = codec.decode_op(line)
            if isinstance(op, OpMessage) and op.key.startswith(f"{txn_id}/"):
                found.append((record, op))
    return found


def resolutions(arena: Arena, txn_id: str) -> list[Resolution]:
    return [op.resolution for _, op in ops(arena, txn_id)]


def half_end(arena: Arena) -> int:
    """How many half records there are."""
    partitions = [(arena.topics.half, p) for p in range(arena.partition_count)]
    with KafkaAdmin(ClientConfig(bootstrap_servers=arena.servers)) as admin:
        return sum(admin.end_offsets(partitions).values())
