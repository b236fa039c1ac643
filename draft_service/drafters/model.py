"""A draft model: q is the model's own distribution under the request's settings, drawn with the request's key."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draft_service.drafters.interface import Guess, OpenBlock
from draft_service.drafters.recall import Recall
from draft_service.drafters.trees import Bud, TreeShape, grow
from draft_service.settings import check_encoding
from draftproof.engine.interface import Engine, Row, Update
from draftproof.errors import ConfigError
from draftproof.sampling.draft_q import DraftQ, Lattice, OneHot, dense, draw, quantise, sparsify, support
from draftproof.sampling.inverse_cdf import inverse_cdf
from draftproof.sampling.params import Rule
from draftproof.sampling.pipeline import History, distributions, finite_rows
from draftproof.sampling.race import winners
from draftproof.sampling.rng import Draw, Purpose, random_words, uniforms
from draftproof.serving.drafting import DraftSequence, Proposal

Encoder = Callable[[Tensor, Sequence[OpenBlock]], Sequence[DraftQ]]


def encoder(encoding: str, entries: int, bits: int) -> Encoder:
    """From q [N, V], a row for each open block, to what goes on the wire and is drawn from.

    Args:
        encoding: lattice, sparse or dense.
        entries: tokens a lattice keeps, on average over a block.
        bits: k of its 2^k.

    Raises:
        ConfigError: unknown encoding or sizes out of range.
    """
    check_encoding(encoding)
    if not 1 <= bits <= 24:
        raise ConfigError("lattice_bits", f"must be in [1, 24], got {bits}")
    if entries < 1:
        raise ConfigError("lattice_entries", f"must be at least 1, got {entries}")
    if encoding == "lattice":
        return lambda q, blocks: quantise(q, [room([p.q for p in b.proposals], entries) for b in blocks], bits)
    return (lambda q, blocks: sparsify(q)) if encoding == "sparse" else (lambda q, blocks: dense(q))


def room(before: Sequence[DraftQ | None], entries: int) -> int:
    """How many tokens the next lattice of a block may keep: what those before it left of `entries` each, and as much
    again as one of them. Known before the draw, from the block's own q alone (L6)."""
    spent = sum(len(q.ids) for q in before if isinstance(q, Lattice))
    return entries * (len(before) + 2) - spent


@dataclass(eq=False, slots=True)
class _Cached:
    """What a slot holds of a sequence: ids as fed, the first `agreed` of them checked against committed tokens."""

    slot: int
    tokens: list[int]
    agreed: int = 0


class ModelDrafter:
    """Drafts with a causal language model; sequences beyond the engine's slots push out the one least recently used.

    Args:
        engine: the draft model, with the target's vocabulary.
        encode: how q goes on the wire.
        prefill_chunk: most prompt tokens of a sequence in one step, so that long prompts don't stall the others.
        recalls: whether q leans towards what followed the last tokens when they stood in the text before; see `Recall`.
        shape: what trees look like, for requests that ask for them. Without trees in the engine they are chains.
    """

    def __init__(
        self,
        engine: Engine,
        encode: Encoder,
        prefill_chunk: int = 256,
        recalls: bool = False,
        shape: TreeShape | None = None,
    ) -> None:
        self.name = f"{engine.name}+ngram" if recalls else engine.name
        self.weights_sha256 = engine.weights_sha256
        self.width = engine.slots
        self.forward_ns = 0
        self._engine = engine
        self._encode = encode
        self._chunk = prefill_chunk
        self._shape = shape or TreeShape()
        self._recall = Recall() if recalls else None
        self._free = list(range(engine.slots))
        self._cached: OrderedDict[DraftSequence, _Cached] = OrderedDict()

    def step(self, blocks: Sequence[OpenBlock]) -> None:
        """One forward pass: a proposal for each block whose text is cached, a chunk of text for the others."""
        rows: list[Row] = []
        drawing: list[Bud] = []
        for block in blocks:
            cached = self._slot(block)
            if cached is None:
                block.lost = True
                continue
            row = self._row(block, cached)
            if row is None:
                block.ended = True
                continue
            rows.append(row)
            drawing += [Bud(block, node, len(drawing) + i) for i, node in enumerate(block.frontier[: row.logits])]
        if not rows:
            return
        started_ns = time.monotonic_ns()
        try:
            logits = self._engine.forward(rows)
        except Exception:
            # what the slots hold now is anyone's guess
            for block in blocks:
                self.release(block.ahead_of or block.sequence)
            raise
        self.forward_ns += time.monotonic_ns() - started_ns
        if drawing:
            self._draw(drawing, logits)

    def guesses(self, sequence: DraftSequence, position: int, proposals: Sequence[Proposal]) -> list[Guess]:
        """That all holds; or that a proposal doesn't, and what q would have given without it takes its place."""
        found = [Guess(len(proposals), None)]
        draws = [Draw(sequence.key, position, i, Purpose.NEXT) for i in range(len(proposals))]
        for i, (proposal, u) in enumerate(zip(proposals, uniforms(draws).tolist(), strict=True)):
            token = _without(proposal, u)
            if token is not None:
                found.append(Guess(i, token))
        return found

    def release(self, sequence: DraftSequence) -> None:
        """Frees the sequence's slot."""
        if self._recall is not None:
            self._recall.release(sequence)
        cached = self._cached.pop(sequence, None)
        if cached is not None:
            self._free.append(cached.slot)

    def install(self, update: Update) -> None:
        """Goes on with other weights; every sequence is read anew. Proposals of open blocks stay: they are draws from
        the q that goes with them (L6)."""
        for sequence in list(self._cached):
            self.release(sequence)
        update.install()
        self.weights_sha256 = update.sha256

    def _draw(self, buds: Sequence[Bud], logits: Tensor) -> None:
        blocks = [bud.block for bud in buds]
        paths = [bud.block.path(bud.node if bud.block.depth else len(bud.block.proposals)) for bud in buds]
        histories = [
            History(b.sequence.prompt_ids, [*b.sequence.output_ids, *path]) if b.sequence.params.needs_history else None
            for b, path in zip(blocks, paths, strict=True)
        ]
        if self._recall is not None:
            tails = [
                [*b.sequence.tokens(b.certain, b.sequence.position), *path]
                for b, path in zip(blocks, paths, strict=True)
            ]
            logits = self._recall.lean(logits, blocks, tails)
        q = distributions(logits, [b.sequence.params for b in blocks], histories)
        finite = finite_rows(q)
        if not bool(finite.all()):
            q = torch.where(finite[:, None], q, torch.full_like(q, 1.0 / q.shape[-1]))
        wants: dict[Callable[[Sequence[OpenBlock], Tensor, Tensor], None], list[int]] = {}
        growing: list[Bud] = []
        for index, (block, good) in enumerate(zip(blocks, finite.tolist(), strict=True)):
            if _is_tree(block):
                # a level without any usable q is the last
                block.ended = block.ended or not any(finite[bud.row] for bud in buds if bud.block is block)
                growing += [buds[index]] if good else []
                continue
            coupled = block.sequence.params.rule is Rule.COUPLED
            if block.guess is not None:
                block.lost = not good
                wants.setdefault(self._guess_race if coupled else self._guess, []).append(index)
            elif good:
                wants.setdefault(self._race if coupled else self._sample, []).append(index)
            else:
                block.ended = True
        for draw_for, rows in wants.items():
            draw_for([blocks[i] for i in rows], q[rows], logits[rows])
        if growing:
            grow(growing, q, logits, self._shape, self._engine.trees)

    def _sample(self, blocks: Sequence[OpenBlock], q: Tensor, logits: Tensor) -> None:
        """Draws one proposal for each block from its row of q, as encoded."""
        words = random_words(
            [Draw(b.sequence.key, b.sequence.position, len(b.proposals), Purpose.DRAFT) for b in blocks]
        )
        for block, encoded, word, row in zip(blocks, self._encode(q, blocks), words, logits, strict=True):
            token = draw(encoded, int(word))
            certain = isinstance(encoded, Lattice) and len(encoded.ids) == 1
            second = _runner_up(row, token) if certain and block.sequence.params.greedy else None
            block.proposals.append(Proposal(token, OneHot(token) if certain else encoded, second))

    def _race(self, blocks: Sequence[OpenBlock], q: Tensor, logits: Tensor) -> None:
        """The same with the noise that the target will draw with."""
        positions = [b.sequence.position + len(b.proposals) for b in blocks]
        drawn = winners(q, [b.sequence.key for b in blocks], positions).tolist()
        for block, token, row in zip(blocks, drawn, logits, strict=True):
            second = _runner_up(row, token) if block.sequence.params.greedy else None
            block.proposals.append(Proposal(token, None, second))

    def _guess(self, blocks: Sequence[OpenBlock], q: Tensor, logits: Tensor) -> None:
        """Guesses the token that the target will draw: with p near q its number gives the same token from q.

        The number belongs to another draw than any of the block's, so what is proposed doesn't depend on it.
        """
        u = torch.from_numpy(uniforms([block.guess for block in blocks if block.guess is not None]))
        _take(blocks, inverse_cdf(q, u.to(q.device)))

    def _guess_race(self, blocks: Sequence[OpenBlock], q: Tensor, logits: Tensor) -> None:
        """The same with the noise that the target will draw with."""
        draws = [block.guess for block in blocks if block.guess is not None]
        _take(blocks, winners(q, [d.key for d in draws], [d.block_start + d.offset for d in draws]))

    def _row(self, block: OpenBlock, cached: _Cached) -> Row | None:
        """The next tokens to feed, or None where the context is full."""
        sequence = block.sequence
        keep = self._agree(sequence, cached, block)
        wanted = self._length(block)
        if sequence.position + len(block.proposals) > self._engine.max_context:
            return None
        fed = self._tail(block, keep, min(wanted, keep + self._chunk))
        cached.tokens[keep:] = fed
        last = int(keep + len(fed) == wanted)
        if not (last and block.depth and self._engine.trees):
            return Row(cached.slot, keep, fed, logits=last)
        nodes = [proposal.token_id for proposal in block.proposals]
        parents = [i if proposal.parent is None else proposal.parent for i, proposal in enumerate(block.proposals)]
        return Row(cached.slot, keep, [*fed, *nodes], logits=len(block.frontier), parents=parents)

    def _length(self, block: OpenBlock) -> int:
        """Tokens of the text that the next proposal follows; a tree's nodes hang from it."""
        return block.sequence.position + (0 if block.depth and self._engine.trees else len(block.proposals))

    def _tail(self, block: OpenBlock, start: int, stop: int) -> list[int]:
        """Tokens [start, stop) of prompt, output and open proposals."""
        position = block.sequence.position
        proposed = block.proposals[max(0, start - position) : max(0, stop - position)]
        return [*block.sequence.tokens(start, stop), *(p.token_id for p in proposed)]

    def _agree(self, sequence: DraftSequence, cached: _Cached, block: OpenBlock) -> int:
        """How many cached tokens still stand. The last wanted token is fed again if need be: its logits are."""
        wanted = self._length(block)
        limit = min(len(cached.tokens), wanted - 1)
        start = min(cached.agreed, limit)
        expected = self._tail(block, start, limit)
        agreed = start
        for held, want in zip(cached.tokens[start:limit], expected, strict=True):
            if held != want:
                break
            agreed += 1
        # proposals of an open block may yet be rejected, and guesses be wrong
        cached.agreed = min(agreed, block.certain)
        return agreed

    def _slot(self, block: OpenBlock) -> _Cached | None:
        """Where the block's text is cached; None for one drafted ahead whose slot others needed more."""
        if block.ahead_of is not None:
            return self._cached.get(block.ahead_of)
        sequence = block.sequence
        cached = self._cached.get(sequence)
        if cached is None:
            if not self._free:
                _, oldest = self._cached.popitem(last=False)
                self._free.append(oldest.slot)
            cached = self._cached[sequence] = _Cached(self._free.pop(), [])
        self._cached.move_to_end(sequence)
        return cached


def _is_tree(block: OpenBlock) -> bool:
    return block.sequence.params.rule is Rule.TREE


def _take(blocks: Sequence[OpenBlock], tokens: Tensor) -> None:
    for block, token in zip(blocks, tokens.tolist(), strict=True):
        block.sequence.output_ids.append(token)
        block.guess = None


def _runner_up(logits: Tensor, token: int) -> int:
    """The largest of [V] logits but the token's."""
    first, second = logits.topk(2).indices.tolist()
    return int(second if first == token else first)


def _without(proposal: Proposal, u: float) -> int | None:
    """What q would have given without the proposal, by the number that the target will draw with."""
    if proposal.q is None or isinstance(proposal.q, OneHot):
        return proposal.runner_up
    ids, masses = support(proposal.q)
    cumulative = np.cumsum(np.where(ids == proposal.token_id, 0.0, masses))
    if not cumulative[-1] > 0.0:
        return None
    return int(ids[min(int(np.searchsorted(cumulative, u * cumulative[-1], side="right")), len(ids) - 1)])
