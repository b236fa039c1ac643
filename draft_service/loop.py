"""The drafting loop: blocks of all sessions advance together, one step of the drafter at a time.

While nobody waits for a block, those that may be wanted next are drafted ahead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from draft_service.ahead import Foresight, Odds
from draft_service.copying import Copier
from draft_service.drafters.interface import Drafter, OpenBlock
from draftproof.engine.interface import Update
from draftproof.errors import InternalError, OverloadedError
from draftproof.metrics.draft import DraftMetrics
from draftproof.serving.drafting import DraftSequence, Outlook, Proposal
from draftproof.serving.model_thread import ModelThread

log = structlog.get_logger(__name__)


class DraftLoop:
    """Batches drafting across sessions; blocks join and leave between steps.

    Args:
        drafter: what draws.
        thread: where it does.
        metrics: told of steps and failures.
        stall_timeout: seconds that a step may take; then requests go on without proposals until it returns.
        on_health: told when a step hangs, and when it has returned after all.
        copier: proposes first, where it has something.
    """

    def __init__(
        self,
        drafter: Drafter,
        thread: ModelThread,
        metrics: DraftMetrics,
        stall_timeout: float = 30.0,
        on_health: Callable[[bool], None] = lambda healthy: None,
        copier: Copier | None = None,
    ) -> None:
        self.name = drafter.name
        self._copier = copier
        self._stall_timeout = stall_timeout
        self._stalled = False
        self._on_health = on_health
        self._drafter = drafter
        self._thread = thread
        self._metrics = metrics
        self._open: deque[tuple[OpenBlock, asyncio.Future[list[Proposal]]]] = deque()
        self._work = asyncio.Event()
        self._released: list[DraftSequence] = []
        self._ahead: dict[DraftSequence, Foresight] = {}
        self._odds = Odds()
        self._change: tuple[Update, asyncio.Future[None]] | None = None

    def outlook(self, sequence: DraftSequence) -> Outlook:
        """A copy, or what the drafter gives."""
        return self._copier.outlook(sequence) if self._copier else Outlook.USUAL

    async def propose(self, sequence: DraftSequence, gamma: int) -> list[Proposal]:
        """Draws up to `gamma` proposals; fewer where the drafter ends the block, fails or hangs."""
        if gamma < 1 or self._stalled:
            self._ahead.pop(sequence, None)
            return []
        if self._copier and (copied := self._copier.propose(sequence, gamma)):
            self._ahead.pop(sequence, None)
            return copied
        future: asyncio.Future[list[Proposal]] = asyncio.get_running_loop().create_future()
        self._open.append((OpenBlock(sequence, gamma), future))
        self._work.set()
        return await future

    def ahead(self, sequence: DraftSequence, proposals: Sequence[Proposal], gamma: int, left: int) -> None:
        """Drafts the next block for likely verdicts on `proposals`, in steps that nobody else needs."""
        if not self._stalled:
            self._ahead[sequence] = Foresight(sequence, list(sequence.output_ids), proposals, gamma, left)
            self._work.set()

    def release(self, sequence: DraftSequence) -> None:
        """Frees the sequence on the drafter before its next step."""
        if self._copier:
            self._copier.release(sequence)
        self._ahead.pop(sequence, None)
        self._released.append(sequence)
        self._work.set()

    async def change_weights(self, update: Update) -> None:
        """Returns when the drafter has other weights: between two steps, so that no q mixes the two.

        Raises:
            OverloadedError: another change waits.
        """
        if self._change is not None:
            raise OverloadedError("another weights update is under way", retry_delay=1.0)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._change = (update, done)
        self._work.set()
        await done

    async def run(self) -> None:
        """Runs steps while blocks are open; ends only by cancellation."""
        while True:
            await self._work.wait()
            self._work.clear()
            if self._change is not None:
                await self._install(*self._change)
            self._settle()
            released, self._released = self._released, []
            # oldest first until done: taking turns would push half-drafted prefixes out of a full KV cache
            blocks = [self._open[i][0] for i in range(min(len(self._open), self._drafter.width))]
            idle = [] if blocks else [f for f in self._ahead.values() if not f.idle][: self._drafter.width]
            if not blocks and not released and not idle:
                continue
            await self._advance(blocks, idle, released)
            self._settle()
            if self._open or any(not f.idle for f in self._ahead.values()):
                self._work.set()

    async def _install(self, update: Update, done: asyncio.Future[None]) -> None:
        """Blocks drafted ahead go: nobody has seen them. Those that are open keep what is drawn."""
        self._change = None
        self._ahead.clear()
        try:
            await self._thread.run(self._drafter.install, update)
        except Exception:
            log.exception("the weights could not be changed")
            if not done.done():
                done.set_exception(InternalError("the weights could not be changed; see the server's log"))
            return
        if not done.done():
            done.set_result(None)

    def _settle(self) -> None:
        """Between steps: takes over what was drafted ahead, gives out what is done, forgets whom nobody waits for."""
        for block, future in self._open:
            foresight = self._ahead.pop(block.sequence, None)
            if foresight is not None:
                found, wasted = foresight.settle(block.gamma, self._odds)
                self._metrics.ahead(found is not None, wasted)
                if found is not None:
                    block.proposals, block.ended = found.proposals, found.ended
            if block.done and not future.done():
                future.set_result(block.drawn)
        # a caller that left cancelled its future
        self._open = deque(entry for entry in self._open if not entry[1].done())

    async def _advance(self, blocks: list[OpenBlock], idle: list[Foresight], released: list[DraftSequence]) -> None:
        step = asyncio.create_task(self._thread.run(self._step, blocks, idle, released))
        try:
            await asyncio.wait({step}, timeout=self._stall_timeout)
            if not step.done():
                self._give_up()
            self._metrics.step(await step, self._drafter.forward_ns)
        except Exception:
            # a broken drafter costs speed, not the request (L10); what was drawn before is still sent (L6)
            log.exception("drafting failed", blocks=len(blocks))
            self._metrics.drafting_failed(len(blocks))
            for block in blocks:
                block.ended = True
            for foresight in idle:
                self._ahead.pop(foresight.sequence, None)
        finally:
            step.cancel()
        if self._stalled:
            self._stalled = False
            log.info("drafting again")
            self._on_health(True)

    def _give_up(self) -> None:
        """Lets every request go on with what was drawn for it so far (L10); a hung call can't be ended."""
        self._stalled = True
        self._on_health(False)
        log.error("the drafter hangs; requests go on without it", seconds=self._stall_timeout, blocks=len(self._open))
        self._metrics.drafting_failed(len(self._open))
        for block, future in self._open:
            if not future.done():
                future.set_result(block.drawn)

    def _step(self, blocks: Sequence[OpenBlock], idle: Sequence[Foresight], released: Sequence[DraftSequence]) -> int:
        for sequence in released:
            self._drafter.release(sequence)
        if idle:
            found = [foresight.block(self._drafter, self._odds) for foresight in idle]
            blocks = [block for block in found if block is not None]
        if blocks:
            self._drafter.step(blocks)
        return len(blocks)
