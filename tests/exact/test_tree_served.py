"""Trees as they are served, many rounds with the real generator: drafter, intake and verdict over table engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from draft_service.drafters import trees
from draft_service.drafters.interface import OpenBlock
from draft_service.drafters.model import ModelDrafter, encoder
from draft_service.drafters.trees import TreeShape
from draftproof.engine.interface import Row
from draftproof.sampling.params import Rule, SamplingParams
from draftproof.sampling.pipeline import History, distribution
from draftproof.sampling.rng import derive_key
from draftproof.sampling.siblings import Remaining
from draftproof.serving.drafting import DraftSequence, Proposal
from draftproof.testing.statistics import g_test
from draftproof.testing.table import TableEngine
from draftproof.verification.intake import Intake
from draftproof.verification.round import RoundInput, verify_rounds
from draftproof.verification.tree_intake import SentNode, admit_tree
from tests.exact.enumeration import target_law

V = 4
PROMPT = [1, 2]
LENGTH = 2
OUTPUTS = 600
LEVEL = 1e-4
CAUGHT = 1e-6

HOT = SamplingParams(rule=Rule.TREE, temperature=1.2)
PENALISED = replace(HOT, presence_penalty=1.5, repetition_penalty=1.3)
ADMIT = admit_tree


def table(**options: float) -> TableEngine:
    return TableEngine(V, spread=1.6, slots=OUTPUTS, max_context=64, **options)


def law(params: SamplingParams) -> dict[tuple[int, ...], float]:
    engine = table()

    def after(prefix: Sequence[int]) -> np.ndarray:
        logits = engine.logits_after([[*PROMPT, *prefix]]).double()
        return np.asarray(distribution(logits, params, History(PROMPT, prefix))[0])

    return target_law(after, LENGTH, V)


def sent(proposals: Sequence[Proposal]) -> list[SentNode]:
    return [SentNode(p.token_id, i if p.parent is None else p.parent, p.q) for i, p in enumerate(proposals)]


def served(params: SamplingParams) -> Counter[tuple[int, ...]]:
    """First tokens of many requests, all in step; every proposal is the drafter's own."""
    verifier = table()
    drafter = ModelDrafter(table(noise=0.8), encoder("lattice", 128, 8), shape=TreeShape((2, 2, 1), bits=8))
    requests = [DraftSequence(PROMPT, params, derive_key(5, PROMPT, index, 0)) for index in range(OUTPUTS)]
    verifier.forward([Row(slot, 0, PROMPT[:-1], 0) for slot in range(OUTPUTS)])
    while open_ := [(slot, r) for slot, r in enumerate(requests) if len(r.output_ids) < LENGTH]:
        blocks = [OpenBlock(request, 3) for _, request in open_]
        while drafting := [block for block in blocks if not block.done]:
            drafter.step(drafting)
        rows, rounds = [], []
        for (slot, request), block in zip(open_, blocks, strict=True):
            taken: Intake = ADMIT(sent(block.drawn), request.key, request.position)
            assert taken.tree is not None
            fed = [*request.tokens(request.position - 1, request.position), *taken.tokens]
            rows.append(Row(slot, request.position - 1, fed, len(fed), taken.tree.parents))
            rounds.append(
                RoundInput(
                    params=params,
                    prompt_ids=PROMPT,
                    output_ids=request.output_ids,
                    key=request.key,
                    block_start=request.position,
                    tokens=taken.tokens,
                    tree=taken.tree,
                )
            )
        verdicts = verify_rounds(verifier.forward(rows), rounds)
        for (slot, request), asked, verdict in zip(open_, rounds, verdicts, strict=True):
            verifier.keep(slot, verdict.path)
            request.output_ids += [*(asked.tokens[node - 1] for node in verdict.path), verdict.next_id]
            assert verifier.cached(slot) == (*PROMPT, *request.output_ids[:-1])
    return Counter(tuple(request.output_ids[:LENGTH]) for request in requests)


@pytest.mark.parametrize("params", [HOT, PENALISED], ids=["plain", "penalties"])
def test_outputs_follow_the_targets_law(params: SamplingParams) -> None:
    assert g_test(served(params), law(params)).p_value > LEVEL


def test_a_draft_that_draws_hotter_costs_its_mismatches_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    draw_as_told = trees.draw_sibling

    def hotter(left: Remaining, words: Sequence[int]) -> int:
        counts = np.full(len(left.ids), 5)
        return draw_as_told(Remaining(left.ids, counts, int(counts.sum())), words)

    monkeypatch.setattr(trees, "draw_sibling", hotter)
    assert g_test(served(HOT), law(HOT)).p_value > LEVEL
    monkeypatch.setattr("tests.exact.test_tree_served.ADMIT", lambda *of: admit_tree(*of, check_draws=False))
    assert g_test(served(HOT), law(HOT)).p_value < CAUGHT


def _by_whole_q(nodes: Sequence[SentNode], key: bytes, start: int) -> Intake:
    """Judges siblings drawn without replacement as if they had been drawn with it."""
    taken = admit_tree(nodes, key, start)
    assert taken.tree is not None
    whole: dict[int, Remaining] = {}
    qs = [whole.setdefault(parent, left) for parent, left in zip(taken.tree.parents, taken.tree.qs, strict=True)]
    return replace(taken, tree=replace(taken.tree, qs=qs))


def test_siblings_judged_by_the_whole_q_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.exact.test_tree_served.ADMIT", _by_whole_q)
    assert g_test(served(HOT), law(HOT)).p_value < CAUGHT
