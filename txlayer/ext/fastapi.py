"""A producer in a FastAPI app: started and closed with it, an argument of its endpoints, and its errors answered."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from fastapi.requests import HTTPConnection
from fastapi.responses import JSONResponse

from txlayer.errors import OutcomeUnknownError, RetriableError, RollbackRequiredError
from txlayer.producer.aio import AsyncTransactionalProducer
from txlayer.producer.producer import TransactionalProducer

REPEATABLE = (RetriableError, OutcomeUnknownError, RollbackRequiredError)
"""Errors after which a client may repeat its request, if a key of its own makes that harmless."""


def install(
    app: FastAPI,
    make_producer: Callable[[], AsyncTransactionalProducer | TransactionalProducer],
    *,
    retry_after: timedelta = timedelta(seconds=2),
) -> None:
    """Make a producer at each start of the app, inside its own lifespan, and close it at the end.

    Endpoints take it as `Producer`, or `BlockingProducer` if they are plain functions. Errors of `REPEATABLE` are answered with
    503 and `Retry-After`; the others stay errors of the app.
    """
    lifespan = app.router.lifespan_context

    @asynccontextmanager
    async def with_producer(app: FastAPI) -> AsyncIterator[Any]:
        async with lifespan(app) as state, _running(make_producer()) as app.state.txlayer_producer:
            yield state

    async def try_again(_request: Request, _error: Exception) -> JSONResponse:
        seconds = str(max(round(retry_after.total_seconds()), 0))
        return JSONResponse({"detail": "try again"}, status_code=503, headers={"Retry-After": seconds})

    app.router.lifespan_context = with_producer
    for error in REPEATABLE:
        app.add_exception_handler(error, try_again)


async def producer_of(connection: HTTPConnection) -> Any:  # a coroutine: FastAPI runs others on a thread
    """The producer of the app that serves this request."""
    return connection.app.state.txlayer_producer


Producer = Annotated[AsyncTransactionalProducer, Depends(producer_of)]
BlockingProducer = Annotated[TransactionalProducer, Depends(producer_of)]


@asynccontextmanager
async def _running(
    producer: AsyncTransactionalProducer | TransactionalProducer,
) -> AsyncIterator[AsyncTransactionalProducer | TransactionalProducer]:
    if isinstance(producer, AsyncTransactionalProducer):
        async with producer:
            yield producer
        return
    await asyncio.to_thread(producer.start)
    try:
        yield producer
    finally:
        await asyncio.to_thread(producer.close)
