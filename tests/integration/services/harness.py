"""Both services in one event loop over the table engine, and peers that a test drives frame by frame."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draft_service.app import DraftApp, DraftConfig, TargetAddress
from draft_service.copying import Copier
from draft_service.drafters.interface import Drafter
from draft_service.drafters.model import ModelDrafter, encoder
from draft_service.link import LinkConfig
from draftproof import AsyncClient
from draftproof.rpc.channel import aio_channel
from draftproof.sampling.draft_q import DraftQ, draw
from draftproof.sampling.rng import Draw, Purpose, random_words
from draftproof.serving import process
from draftproof.serving.options import ListenConfig
from draftproof.testing.table import ByteTokenizer, TableEngine
from draftproof.v1 import fingerprint_pb2, sampling_pb2, target_pb2, target_pb2_grpc
from draftproof.wire.distribution import encode
from target_service.app import TargetApp, TargetConfig
from target_service.verifier import VerifierConfig

LETTERS = 27
"""a..z and the end of sequence."""
EOS = LETTERS - 1
PATIENCE = 10.0


def letters() -> ByteTokenizer:
    return ByteTokenizer(LETTERS, first_byte=ord("a"))


def table(**options: Any) -> TableEngine:
    return TableEngine(LETTERS, **options)


def model_drafter(engine: TableEngine, encoding: str = "lattice") -> ModelDrafter:
    return ModelDrafter(engine, encoder(encoding, 128, 12))


class ScriptEngine(TableEngine):
    """After a prompt of `prompt` tokens gives the tokens of a script, each with all but certainty."""

    def __init__(self, script: Sequence[int], prompt: int, vocab_size: int = LETTERS, **options: Any) -> None:
        super().__init__(vocab_size, order=10_000, **options)
        self._script = script
        self._prompt = prompt

    def logits_after(self, contexts: Sequence[Sequence[int]]) -> Tensor:
        logits = torch.zeros(len(contexts), self.vocab_size)
        for row, context in enumerate(contexts):
            position = len(context) - self._prompt
            logits[row, self._script[position] if 0 <= position < len(self._script) else 0] = 100.0
        return logits


class Node:
    """A service that runs until it is killed or drained."""

    def __init__(self, app: TargetApp | DraftApp) -> None:
        self.app = app
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.app.start()
        self._running = asyncio.create_task(self.app.run())

    @property
    def address(self) -> str:
        assert self.app.server is not None
        return str(self.app.server.address)

    @property
    def port(self) -> int:
        assert self.app.server is not None
        return self.app.server.port

    async def failed(self) -> BaseException:
        """Waits until the service ends by itself."""
        assert self._running is not None
        with suppress(BaseException):
            await asyncio.wait_for(asyncio.shield(self._running), PATIENCE)
        error = self._running.exception()
        assert error is not None
        return error

    async def kill(self) -> None:
        """No goodbye: loops and calls are cut off."""
        if self._running is not None:
            self._running.cancel()
            with suppress(BaseException):
                await self._running
        if self.app.server is not None:
            await self.app.server.stop(0)

    def count(self, name: str, **labels: str) -> float:
        """A metric's value, summed over labels that aren't given; 0 where it was never touched."""
        samples = (sample for family in self.app.registry.collect() for sample in family.samples)
        return sum(s.value for s in samples if s.name == f"draftproof_{name}" and labels.items() <= s.labels.items())

    @property
    def serving(self) -> bool:
        assert self.app.server is not None
        return self.app.server._health._serving


@dataclass
class Stack:
    """A target, a draft and a client of each."""

    target: Node
    draft: Node
    engine: TableEngine
    client: AsyncClient
    direct: AsyncClient
    restart_target: Callable[[], Any]
    restart_draft: Callable[[], Any]

    async def idle(self) -> None:
        """Waits until neither side holds anything of any request."""
        await until(lambda: not held(self))


def held(stack: Stack) -> dict[str, Any]:
    """All that requests hold on both servers, by name."""
    assert isinstance(stack.target.app, TargetApp)
    assert isinstance(stack.draft.app, DraftApp)
    verifier, draft = stack.target.app._verifier, stack.draft.app
    admission = verifier._admission
    link, loop = draft._link, draft._loop
    assert link is not None
    drafter: Any = draft._drafter
    found = {
        "target sessions": verifier._sessions,
        "slots": admission.active,
        "queue": admission.waiting,
        "free slots missing": verifier._engine.slots - len(admission._free),
        "link sessions": link._sessions,
        "open blocks": [b for b, f in loop._open if not f.done()],
        "drafted ahead": loop._ahead,
        "draft requests": draft._generator.running,
        "target requests": stack.target.app._generator.running,
        "draft slots": getattr(drafter, "_cached", None),
    }
    return {name: value for name, value in found.items() if value}


@dataclass
class Options:
    """How to build a stack."""

    engine: TableEngine = field(default_factory=table)
    drafter: Callable[[], Drafter] = lambda: model_drafter(table(noise=0.3))
    tokenizer: ByteTokenizer = field(default_factory=letters)
    verifier: VerifierConfig = field(default_factory=VerifierConfig)
    target_listen: ListenConfig = field(default_factory=ListenConfig)
    draft_listen: ListenConfig = field(default_factory=ListenConfig)
    link: LinkConfig = field(default_factory=lambda: LinkConfig(reconnect_timeout=5.0))
    dial: Callable[[str], TargetAddress] = lambda address: TargetAddress(address=address)
    through: Proxy | None = None
    gamma: int = 4
    ahead: bool | None = None
    max_sessions: int = 512
    copier: Callable[[], Copier | None] = lambda: None


class Kit:
    """Builds stacks and takes them down again."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._clients: list[AsyncClient] = []

    async def target(self, options: Options, port: int = 0) -> Node:
        listen = replace(options.target_listen, port=port)
        app = TargetApp(options.engine, options.tokenizer, TargetConfig(verifier=options.verifier, listen=listen))
        return await self._start(app)

    async def draft(self, options: Options, target: str, port: int = 0) -> Node:
        config = DraftConfig(
            target=options.dial(target),
            listen=replace(options.draft_listen, port=port),
            link=options.link,
            gamma=options.gamma,
            ahead=options.ahead,
            max_sessions=options.max_sessions,
        )
        vocab_size, copier = options.tokenizer.vocab_size, options.copier()
        return await self._start(DraftApp(options.drafter(), options.tokenizer, vocab_size, config, copier=copier))

    def client(self, address: str, **options: Any) -> AsyncClient:
        client = AsyncClient(address, timeout=30.0, **options)
        self._clients.append(client)
        return client

    async def stack(self, ready: bool = True, **changes: Any) -> Stack:
        options = Options(**changes)
        target = await self.target(options)
        address = target.address
        if options.through is not None:
            address = await options.through.start(target.port)
        draft = await self.draft(options, address)

        async def restart_target() -> None:
            port = stack.target.port
            await stack.target.kill()
            stack.target = await self.target(options, port)

        async def restart_draft() -> None:
            port = stack.draft.port
            await stack.draft.kill()
            stack.draft = await self.draft(options, address, port)
            await until(lambda: stack.draft.serving)

        stack = Stack(
            target,
            draft,
            options.engine,
            self.client(draft.address),
            self.client(target.address),
            restart_target,
            restart_draft,
        )
        if ready:
            await until(lambda: draft.serving)
        return stack

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()
        for node in reversed(self._nodes):
            await node.kill()

    async def _start(self, app: TargetApp | DraftApp) -> Node:
        node = Node(app)
        self._nodes.append(node)
        await node.start()
        return node


async def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Waits for a condition.

    Raises:
        TimeoutError: it did not come true.
    """
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the condition did not come true")
        await asyncio.sleep(0.005)


class RawDraft:
    """A draft of which the test writes every frame."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.welcome = target_pb2.Welcome()

    async def send(self, session: int = 1, epoch: int = 1, round: int = 0, **frame: Any) -> None:
        await self.call.write(target_pb2.VerifyRequest(session=session, epoch=epoch, round=round, **frame))

    async def receive(self) -> target_pb2.VerifyResponse:
        frame = await asyncio.wait_for(self.call.read(), PATIENCE)
        assert isinstance(frame, target_pb2.VerifyResponse), "the stream ended"
        return frame

    async def nothing(self, seconds: float = 0.1) -> None:
        """Checks that no frame comes."""
        reading = asyncio.ensure_future(self.call.read())
        done, _ = await asyncio.wait({reading}, timeout=seconds)
        assert not done, f"unexpected {reading.result()}"
        self._reading = reading

    async def open(
        self,
        session: int = 1,
        epoch: int = 1,
        prompt: Sequence[int] = (1, 2, 3),
        output: Sequence[int] = (),
        key: bytes = b"",
        **sampling: Any,
    ) -> target_pb2.SessionOpened:
        sampling = {"seed": 7, "ignore_eos": True, "max_tokens": 64} | sampling
        await self.send(
            session,
            epoch,
            open=target_pb2.OpenSession(
                prompt_ids=prompt,
                output_ids=output,
                request_key=key,
                sampling=sampling_pb2.SamplingParams(**sampling),
            ),
        )
        frame = await self.receive()
        assert frame.WhichOneof("frame") == "opened", frame
        return frame.opened

    async def round(
        self, number: int, start: int, proposals: Sequence[target_pb2.Proposal] = (), session: int = 1, epoch: int = 1
    ) -> target_pb2.VerifyResponse:
        await self.send(session, epoch, number, block=target_pb2.Block(start=start, proposals=proposals))
        return await self.receive()


def fingerprint(tokenizer: ByteTokenizer | None = None) -> fingerprint_pb2.Fingerprint:
    tokenizer = tokenizer or letters()
    return process.fingerprint(process.vocabulary(tokenizer, tokenizer.vocab_size), "raw", b"")


@asynccontextmanager
async def raw_draft(address: str, hello: bool = True, **channel_options: Any) -> AsyncIterator[RawDraft]:
    channel = aio_channel(address, **channel_options)
    call: Any = target_pb2_grpc.TargetServiceStub(channel).Verify()
    peer = RawDraft(call)
    try:
        if hello:
            await peer.send(0, 0, hello=target_pb2.Hello(fingerprint=fingerprint(), drafter="raw"))
            peer.welcome = (await peer.receive()).welcome
        yield peer
    finally:
        call.cancel()
        await channel.close()


def proposals(
    key: bytes, start: int, qs: Sequence[DraftQ], tokens: Sequence[int | None] | None = None
) -> list[target_pb2.Proposal]:
    """Proposals drawn from q with the request's key, or the tokens given."""
    words = random_words([Draw(key, start, offset, Purpose.DRAFT) for offset in range(len(qs))])
    drawn = [draw(q, int(word)) for q, word in zip(qs, words, strict=True)]
    sent = [d if t is None else t for d, t in zip(drawn, tokens or [None] * len(qs), strict=True)]
    return [target_pb2.Proposal(token_id=t, q=q) for t, q in zip(sent, encode(qs), strict=True)]


def random_q(seed: int, rows: int = 1) -> Tensor:
    """[rows, LETTERS] float32 distributions."""
    return torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(LETTERS), rows).astype(np.float32))


class Proxy:
    """A TCP relay whose connections a test cuts."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self._port = 0
        self.cuts = 0

    async def start(self, port: int) -> str:
        self._port = port
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Resets every connection."""
        self.cuts += 1
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def close(self) -> None:
        self.cut()
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        self._writers += [writer, far_writer]
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        sink.transport.abort()
