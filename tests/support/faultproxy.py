"""A TCP proxy between clients and one broker that reads Kafka's request frames and does harm when it is told to.

Clients come here when the broker gives out the proxy's address (`KafkaCluster(proxied_listeners=...)`). What it can do to
all traffic: `latency_s`, `is_blackhole` (bytes are held back while connections stay open), `cut()`. What it can do to the
requests of one kind, by Kafka's number of it, one action or several with `+` between:

    cut_after   the broker gets the request, the client never gets the answer, the connection is reset
    drop        the request is swallowed, the connection stays
    hold:S      the request goes on S seconds later; those behind it on the connection wait too
    echo:S      the request goes on now, and S seconds later once more on a connection of its own, whose answer nobody
                gets; `cut_after+echo:2` is a request whose connection was lost and that arrives all the same
    echo        the same, and the later one comes when `release` is called: where a test says what has happened by then
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

PRODUCE, OFFSET_COMMIT, INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = (
    0,
    8,
    22,
    24,
    25,
    26,
    28,
)

CHUNK_BYTES = 1 << 18
FRAME_BYTES_MAX = 1 << 27
TURNS = 5
"""Of the loop, from a connection's arrival to the first step of whoever serves it, and some to spare."""
CUT_DELAY_S = 0.02
"""Between passing a request on and cutting its connection: the broker must have read it."""


@dataclass(slots=True)
class Rules:
    """What happens to the traffic from now on; nothing by default."""

    latency_s: float = 0.0
    is_blackhole: bool = False
    actions: dict[int, str] = field(default_factory=dict)  # ApiKey → action
    action_count_max: int = 1 << 30  # so many requests get their action, the rest pass


class FaultProxy:
    """Listens on one port of this machine and passes on to `target`; a thread of its own does the work."""

    def __init__(self, target: tuple[str, int], *, port: int) -> None:
        self.port = port
        self.requests: Counter[int] = Counter()
        self.acted: Counter[int] = Counter()
        self.harmed: Counter[int] = Counter()
        """Requests by their kind that got an action, under whatever rules."""
        self.echoed: Counter[int] = Counter()
        self._target = target
        self._rules = Rules()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._held_back: list[asyncio.Future[None]] = []
        self._loop = asyncio.new_event_loop()
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="faultproxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_ready.wait(10), "the proxy does not listen"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def use(self, rules: Rules | None = None) -> None:
        """Replace all rules; without an argument everything passes. New actions forget what earlier ones held back."""
        self._loop.call_soon_threadsafe(self._use, rules or Rules())

    def _use(self, rules: Rules) -> None:
        self._rules = rules
        self.acted.clear()
        if rules.actions:
            for held_back in self._held_back:
                held_back.cancel()
            self._held_back.clear()
        if rules.is_blackhole:
            self._is_open.clear()
        else:
            self._is_open.set()

    def release(self) -> None:
        """Let the requests arrive now that an `echo` without a time held back."""
        self._loop.call_soon_threadsafe(self._release)

    def _release(self) -> None:
        for held_back in self._held_back:
            held_back.set_result(None)
        self._held_back.clear()

    def cut(self) -> None:
        """Reset every open connection now."""
        self._loop.call_soon_threadsafe(self._reset_all)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", self.port))
        self._is_ready.set()
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._end(server))
            self._loop.close()

    async def _end(self, server: asyncio.Server) -> None:
        server.close()
        await _let_others_run()  # whoever was just accepted has begun to be served, and can be ended
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._reset_all()
        await _let_others_run()  # a connection closes its socket a turn after it was told to

    def _reset_all(self) -> None:
        for writer in list(self._writers):
            _reset(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            to_broker = await asyncio.open_connection(*self._target)
        except (OSError, asyncio.CancelledError):
            self._writers.discard(writer)
            _reset(writer)
            return
        link = _Link(self, client=(reader, writer), broker=to_broker)
        self._writers |= link.writers
        try:
            with contextlib.suppress(asyncio.CancelledError):  # the proxy itself ends
                await asyncio.gather(link.pass_requests(), link.pass_answers())
        finally:
            self._writers -= link.writers
            link.reset()

    async def shape(self) -> None:
        """Wait as the rules say before bytes go on."""
        await self._is_open.wait()
        if self._rules.latency_s:
            await asyncio.sleep(self._rules.latency_s)

    def action_on(self, api: int) -> str:
        """What to do with this request; it counts."""
        self.requests[api] += 1
        action = self._rules.actions.get(api, "")
        if action and self.acted[api] >= self._rules.action_count_max:
            return ""
        self.acted[api] += bool(action)
        self.harmed[api] += bool(action)
        return action

    def echo(self, api: int, frame: bytes, *, after_s: float | None) -> None:
        """Send the frame again later, alone; None: when it is released."""
        until: Awaitable[object]
        if after_s is None:
            held_back: asyncio.Future[None] = self._loop.create_future()
            self._held_back.append(held_back)
            until = held_back
        else:
            until = asyncio.sleep(after_s)
        task = self._loop.create_task(self._echo(api, frame, until))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _echo(self, api: int, frame: bytes, until: Awaitable[object]) -> None:
        await until
        with contextlib.suppress(OSError):  # the broker is away by now: nothing comes late
            reader, writer = await asyncio.open_connection(*self._target)
            self._writers.add(writer)
            try:
                writer.write(frame)
                await writer.drain()
                if await reader.read(CHUNK_BYTES):  # answered: the broker has done it
                    self.echoed[api] += 1
            finally:
                self._writers.discard(writer)
                _reset(writer)


class _Link:
    """One client's connection and the one to the broker that belongs to it."""

    def __init__(
        self,
        proxy: FaultProxy,
        *,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        broker: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._proxy = proxy
        self._client = client
        self._broker = broker
        self._is_mute = False
        self.writers = {client[1], broker[1]}

    def reset(self) -> None:
        for writer in self.writers:
            _reset(writer)

    async def pass_requests(self) -> None:
        """Client to broker, whole frames."""
        reader, writer = self._client[0], self._broker[1]
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = await reader.readexactly(4)
                (size,) = struct.unpack(">i", head)
                assert 0 < size < FRAME_BYTES_MAX, f"no frame of Kafka: {size} bytes"
                frame = head + await reader.readexactly(size)
                await self._proxy.shape()
                if not await self._pass_one(frame, writer):
                    break
        self.reset()

    async def _pass_one(self, frame: bytes, writer: asyncio.StreamWriter) -> bool:
        (api,) = struct.unpack_from(">h", frame, 4)
        actions = dict(a.partition(":")[::2] for a in self._proxy.action_on(api).split("+"))
        if "drop" in actions:
            return True
        if "hold" in actions:
            await asyncio.sleep(float(actions["hold"]))
        if "echo" in actions:
            after_s = float(actions["echo"]) if actions["echo"] else None
            self._proxy.echo(api, frame, after_s=after_s)
        self._is_mute = "cut_after" in actions
        writer.write(frame)
        await writer.drain()
        if self._is_mute:
            await asyncio.sleep(CUT_DELAY_S)
        return not self._is_mute

    async def pass_answers(self) -> None:
        """Broker to client, bytes as they come."""
        reader, writer = self._broker[0], self._client[1]
        with contextlib.suppress(OSError):
            while chunk := await reader.read(CHUNK_BYTES):
                await self._proxy.shape()
                if not self._is_mute:
                    writer.write(chunk)
                    await writer.drain()
        self.reset()


async def _let_others_run() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST, as a lost peer does."""
    with contextlib.suppress(OSError):
        raw = writer.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
