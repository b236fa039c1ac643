"""The pipeline's promises: ties, extremes, dtypes, bad numbers, and rows that don't know of each other."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from draftproof.sampling import filters
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.pipeline import History, distribution, distributions, finite_rows

INF, NAN = math.inf, math.nan
EVERY_STAGE = [
    SamplingParams(),
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.7),
    SamplingParams(top_k=2),
    SamplingParams(top_p=0.8),
    SamplingParams(min_p=0.2),
    SamplingParams(temperature=1.3, top_k=3, top_p=0.9, min_p=0.1),
    SamplingParams(temperature=1e-6),
]


def _mixed(n: int, vocab_size: int) -> tuple[list[SamplingParams], list[History | None]]:
    """n settings that cover every stage in changing combinations, and histories."""
    cycle = itertools.cycle(
        itertools.product((1.0, 0.0, 0.7, 1.3, 1e-6), (0, 1, 50, vocab_size), (1.0, 0.3, 0.95), (0.0, 0.02), (1.0, 1.2))
    )
    params = [
        SamplingParams(
            temperature=t,
            top_k=k,
            top_p=p,
            min_p=m,
            repetition_penalty=r,
            presence_penalty=0.5 * (i % 3 == 0),
            frequency_penalty=0.1 * (i % 5 == 0),
            logit_bias={i % vocab_size: 2.0} if i % 4 == 0 else {},
        )
        for i, (t, k, p, m, r) in enumerate(itertools.islice(cycle, 0, n * 7, 7))
    ]
    prompt = list(range(0, vocab_size, 7))
    return params, [History(prompt, [i % vocab_size, i % vocab_size, (3 * i) % vocab_size]) for i in range(n)]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("vocab_size", [17, 1003, 20_011])
def test_a_row_is_the_same_alone_and_in_any_batch(vocab_size: int, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        n = 40
        # Three scales: nuclei that end at the first look, later, and only among all tokens.
        scale = torch.tensor([0.1, 2.0, 6.0]).repeat(n)[:n, None]
        logits = torch.randn(n, vocab_size, generator=torch.Generator().manual_seed(5)) * scale
        params, histories = _mixed(n, vocab_size)
        batch = distributions(logits, params, histories)
        backwards = distributions(logits.flip(0), params[::-1], histories[::-1]).flip(0)
        assert torch.equal(batch, backwards)
        for i in range(n):
            alone = distributions(logits[i : i + 1], [params[i]], [histories[i]])[0]
            assert torch.equal(batch[i], alone), params[i]
        same = distributions(logits, [params[7]] * n, histories)
        assert torch.equal(same[7], batch[7])
    finally:
        torch.set_num_threads(before)


def test_every_row_is_a_distribution() -> None:
    logits = torch.randn(60, 5000, generator=torch.Generator().manual_seed(6)) * 3
    params, histories = _mixed(60, 5000)
    p = distributions(logits, params, histories)
    assert p.dtype == torch.float32
    assert (p >= 0).all()
    assert finite_rows(p).all()
    torch.testing.assert_close(p.double().sum(dim=-1), torch.ones(60, dtype=torch.float64), rtol=0, atol=1e-5)
    for row, setting in zip(p, params, strict=True):
        if setting.top_k:
            assert int((row > 0).sum()) <= setting.top_k


def test_the_logits_are_left_untouched() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        logits = torch.randn(8, 50).to(dtype)
        before = logits.clone()
        history = History([1, 2], [3])
        for params in ([SamplingParams(repetition_penalty=2.0, logit_bias={1: 5})] * 8, EVERY_STAGE):
            distributions(logits, params, [history] * 8)
            assert torch.equal(logits, before)


def test_distribution_takes_any_leading_shape() -> None:
    logits = torch.randn(2, 3, 11)
    params = SamplingParams(top_k=4, presence_penalty=1.0)
    history = History([], [5])
    p = distribution(logits, params, history)
    assert p.shape == (2, 3, 11)
    assert torch.equal(p[1, 2], distribution(logits[1, 2], params, history))
    assert distribution(torch.empty(0, 11), params, history).shape == (0, 11)
    assert distributions(torch.empty(0, 11), [], []).shape == (0, 11)


# --- dtypes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_logits_are_computed_in_float32(dtype: torch.dtype) -> None:
    logits = (torch.randn(8, 3000, generator=torch.Generator().manual_seed(7)) * 4).to(dtype)
    p = distributions(logits, EVERY_STAGE, [None] * 8)
    assert p.dtype == torch.float32
    assert torch.equal(p, distributions(logits.float(), EVERY_STAGE, [None] * 8))
    # What that avoids: masses that are off by a percent and don't sum to one.
    low = logits[:1].softmax(dim=-1).double()
    assert (low - p[:1].double()).abs().max() > 1e-5


def test_float64_logits_stay_float64() -> None:
    logits = torch.randn(8, 300, dtype=torch.float64)
    p = distributions(logits, EVERY_STAGE, [None] * 8)
    assert p.dtype == torch.float64
    torch.testing.assert_close(p[2], (logits[2] / 0.7).softmax(dim=-1), rtol=1e-13, atol=0)


# --- ties


def test_greedy_takes_the_lower_id_after_penalties_and_bias() -> None:
    def best(logits: list[float], history: History | None = None, **params: object) -> int:
        p = distribution(torch.tensor(logits), SamplingParams(temperature=0, **params), history)  # type: ignore[arg-type]
        assert sorted(p.tolist()) == [0.0] * (len(logits) - 1) + [1.0]
        return int(p.argmax())

    assert best([1, 3, 3, 3]) == 1
    assert best([-0.0, 0.0]) == 0
    assert best([1, 3, 3, 3], History([1], []), repetition_penalty=2.0) == 2
    assert best([1, 3, 3, 3], History([1], [2]), presence_penalty=1.0) == 1
    assert best([1, 3, 3, 3], logit_bias={3: 0.5}) == 3
    assert best([1, 3, 3, 3], logit_bias={1: -100, 2: -100, 0: 2}) == 0
    # Filters can't change an argmax.
    assert best([1, 3, 3, 3], top_k=1, top_p=0.1, min_p=1.0) == 1


@pytest.mark.parametrize("vocab_size", [6, 200, 3000, 20_000])
def test_ties_in_large_vocabularies(vocab_size: int) -> None:
    flat = torch.zeros(vocab_size)
    # Half a token short of the half, away from its rounding.
    half = distribution(flat, SamplingParams(top_p=0.5 - 0.5 / vocab_size))
    assert (half > 0).nonzero()[:, 0].tolist() == list(range(vocab_size // 2))
    assert torch.equal(distribution(flat, SamplingParams(top_k=3)), distribution(flat, SamplingParams()))
    # Two tied groups: the cut falls into the second, wherever its tokens are.
    logits = flat.clone()
    logits[-2:] = 20.0
    kept = (distribution(logits, SamplingParams(top_k=2, top_p=0.4)) > 0).nonzero()[:, 0].tolist()
    assert kept == [vocab_size - 2]
    logits[1], logits[3] = 19.0, 19.0
    kept = (distribution(logits, SamplingParams(top_p=0.8)) > 0).nonzero()[:, 0].tolist()
    assert kept == [1, vocab_size - 2, vocab_size - 1]


def test_top_k_counts_ties_beyond_the_first_look() -> None:
    vocab_size = 5000
    logits = torch.zeros(vocab_size)
    logits[10] = 1.0
    logits[torch.arange(100, 100 + 3 * filters._CANDIDATES[0], 3)] = 0.5
    p = distribution(logits, SamplingParams(top_k=2))
    assert int((p > 0).sum()) == 1 + filters._CANDIDATES[0]


def test_a_large_nucleus_is_exact() -> None:
    generator = torch.Generator().manual_seed(8)
    for scale in (0.01, 0.5, 1.0, 3.0):
        logits = torch.randn(30_000, generator=generator, dtype=torch.float64) * scale
        for params in (SamplingParams(top_p=0.9), SamplingParams(top_p=0.9, top_k=20_000), SamplingParams(top_k=200)):
            order = logits.argsort(descending=True)
            if params.top_k:
                order = order[: params.top_k]
            masses = logits[order].softmax(dim=-1)
            if params.top_p < 1:
                order = order[: 1 + int((masses.cumsum(dim=-1) < params.top_p).sum())]
            expected = torch.zeros_like(logits).index_copy_(0, order, logits[order].softmax(dim=-1))
            torch.testing.assert_close(distribution(logits, params), expected, rtol=1e-9, atol=0)


def test_top_p_is_compared_in_float64() -> None:
    # In float32, 0.3 is 0.30000001: a first token of mass 0.300000005 would not reach it.
    first = 0.300000005
    logits = torch.tensor([first, *[(1 - first) / 7] * 7], dtype=torch.float64).log()
    assert int((distribution(logits, SamplingParams(top_p=0.3)) > 0).sum()) == 1
    assert float(torch.tensor(0.3)) > first


# --- extremes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-6, 0.5, 1.0, 1e6, 1e300])
def test_extreme_logits_and_temperatures_stay_finite(temperature: float, dtype: torch.dtype) -> None:
    big = torch.finfo(dtype).max
    rows = torch.tensor(
        [[big, -big, 0.9 * big], [-big, -big, -big], [1e4, 1e4 - 1, -1e4], [0, 1e-30, -INF]], dtype=dtype
    )
    settings = [{}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.5}, {"top_k": 2, "top_p": 0.9, "min_p": 0.1}]
    for setting in settings:
        p = distribution(rows, SamplingParams(temperature=temperature, **setting))  # type: ignore[arg-type]
        assert finite_rows(p).all(), setting
        torch.testing.assert_close(p.sum(dim=-1), torch.ones(4, dtype=dtype), rtol=1e-5, atol=0)
        assert p[3, 2] == 0.0


def test_a_tiny_temperature_is_all_but_greedy() -> None:
    logits = torch.tensor([1.0, 5.0, 4.999, -3.0])
    assert distribution(logits, SamplingParams(temperature=1e-6)).tolist() == [0.0, 1.0, 0.0, 0.0]
    # Dividing first would overflow.
    assert torch.isinf(torch.tensor(1e36) / torch.tensor(1e-6))
    assert distribution(torch.tensor([1e36, 1.01e36]), SamplingParams(temperature=1e-6)).tolist() == [0.0, 1.0]


def test_legal_penalties_never_make_a_logit_infinite() -> None:
    logits = torch.tensor([[1.0, -1.0, 0.5, 3e38]])
    history = History([0, 1, 2, 3], [0])
    for penalty in (1e-300, 1e-40, 1e40, 1e300):
        p = distribution(logits, SamplingParams(repetition_penalty=penalty, presence_penalty=-2.0), history)
        assert finite_rows(p).all()


def test_masked_logits_have_no_mass() -> None:
    logits = torch.full((8, 300), -INF)
    logits[:, 77] = 1.0
    logits[:, 150] = 0.5
    p = distributions(logits, EVERY_STAGE, [None] * 8)
    assert finite_rows(p).all()
    assert ((p > 0).nonzero()[:, 1].unique() == torch.tensor([77, 150])).all()
    one = torch.full((8, 300), -INF)
    one[:, 299] = -7.0
    assert (distributions(one, EVERY_STAGE, [None] * 8)[:, 299] == 1).all()
    assert finite_rows(logits).all()


@pytest.mark.parametrize("vocab_size", [5, 300, 3000])
@pytest.mark.parametrize("bad", [NAN, INF, "all -inf", "all nan"])
def test_bad_numbers_show_and_stay_in_their_row(bad: float | str, vocab_size: int) -> None:
    logits = torch.randn(8, vocab_size, generator=torch.Generator().manual_seed(9))
    for params in EVERY_STAGE:
        clean = distribution(logits, params)
        broken = logits.clone()
        if isinstance(bad, str):
            broken[3] = -INF if bad == "all -inf" else NAN
        else:
            broken[3, vocab_size // 2] = bad
        p = distribution(broken, params)
        usable = torch.arange(8) != 3
        assert torch.equal(finite_rows(p), usable), params
        assert torch.equal(finite_rows(broken), usable)
        assert torch.equal(p[usable], clean[usable])


def test_finite_rows() -> None:
    rows = torch.tensor([[0.0, 1.0], [NAN, 1.0], [INF, 1.0], [-INF, 1.0], [-INF, -INF], [-INF, NAN]])
    assert finite_rows(rows).tolist() == [True, False, False, True, False, False]


# --- history


def test_ids_outside_the_vocabulary_are_no_ones_logits() -> None:
    logits = torch.randn(10)
    params = SamplingParams(repetition_penalty=1.5, frequency_penalty=0.5)
    inside = distribution(logits, params, History([1, 2], [3]))
    assert torch.equal(distribution(logits, params, History([1, 10, 2, 99, -1], [3, 10])), inside)


def test_what_is_missing_is_said() -> None:
    logits = torch.randn(2, 5)
    with pytest.raises(ValueError, match="history"):
        distribution(logits, SamplingParams(presence_penalty=1.0))
    with pytest.raises(ValueError, match="logit_bias has id 5"):
        distribution(logits, SamplingParams(logit_bias={5: 1.0}))
    with pytest.raises(ValueError, match="2 rows, 1 params"):
        distributions(logits, [SamplingParams()], [None])


def test_every_position_of_a_block_sees_its_own_history() -> None:
    """Position i sees the prefix and proposals 0..i-1: one history for the whole block gives another law."""
    logits = torch.zeros(3, 4)
    params = SamplingParams(frequency_penalty=1.0)
    proposals = [2, 2]
    own = distributions(logits, [params] * 3, [History([0], proposals[:i]) for i in range(3)])
    for i, row in enumerate(own):
        torch.testing.assert_close(row, torch.tensor([0.0, 0.0, -float(i), 0.0]).softmax(dim=-1))
    once = distributions(logits, [params] * 3, [History([0], [])] * 3)
    assert not torch.equal(own, once)


@pytest.mark.gpu
def test_cuda_agrees_with_the_cpu() -> None:
    logits = torch.randn(64, 30_000, generator=torch.Generator().manual_seed(10)) * 3
    params, histories = _mixed(64, 30_000)
    ours: Tensor = distributions(logits.cuda(), params, histories).cpu()
    torch.testing.assert_close(ours, distributions(logits, params, histories), rtol=1e-4, atol=1e-6)
    assert finite_rows(ours).all()
