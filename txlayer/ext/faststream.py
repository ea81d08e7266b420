"""A producer in a FastStream app: started and closed with it, and an argument of its handlers; how its inbox knows a message."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypedDict

from faststream import AckPolicy, Context, ContextRepo, FastStream

from txlayer.adapters.sql import inbox
from txlayer.consumer.context import ReceivedMessage
from txlayer.producer.aio import AsyncTransactionalProducer


class SubscriberOptions(TypedDict):
    """Options of `KafkaBroker.subscriber`."""

    isolation_level: Literal["read_committed"]
    ack_policy: AckPolicy


COMMITTED: SubscriberOptions = {"isolation_level": "read_committed", "ack_policy": AckPolicy.NACK_ON_ERROR}
"""Options of a Kafka subscriber: it sees no aborted messages, and reads a message again whose handler failed."""

_NAME = "txlayer_producer"

Producer = Annotated[AsyncTransactionalProducer, Context(_NAME)]  # a handler's parameter: the producer of the app


def install(app: FastStream, make_producer: Callable[[], AsyncTransactionalProducer]) -> None:
    """Make a producer at each start of the app, before it reads, and close it after the last handler."""
    running: list[AsyncTransactionalProducer] = []

    @app.on_startup
    async def start(context: ContextRepo) -> None:
        producer = make_producer()
        running.append(producer)
        await producer.start()
        context.set_global(_NAME, producer)

    @app.after_shutdown
    async def close() -> None:
        while running:
            await running.pop().close()


def message_key(message: Any) -> str:
    """`txlayer.adapters.sql.message_key` for FastStream's `KafkaMessage`: `AsyncInbox(…, key=message_key)`."""
    return inbox.message_key(ReceivedMessage(message.raw_message))
