"""What the parts of a running cluster cost, measured with a few requests and its workers' own metrics."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from draftproof.client import Client, Completion
from draftproof.errors import UnavailableError
from draftproof.planning.setup import per_position
from draftproof.rpc.channel import channel
from draftproof.v1 import orchestrator_pb2, orchestrator_pb2_grpc

PROMPTS = (
    "Explain in a few paragraphs why the sky is blue.",
    "Write a short story about a lighthouse keeper who finds a letter.",
    "Give me a recipe for a simple vegetable soup, step by step.",
    "Write a Python function that checks whether a string is a palindrome, with examples.",
    "What should I look at when I buy a used bicycle?",
    "Describe how a bill becomes a law in the United States.",
    "Write an email to my landlord about a broken heater.",
    "Explain the water cycle and why it matters.",
)
GAMMA = 6
TOKENS = 96
ALONE, TOGETHER = 3, 4
PROBED_SECONDS = 10.0

Read = Callable[[], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Load:
    """What one load showed, means.

    Attributes:
        gamma: proposals a round.
        pass_tokens, pass_seconds: of a target pass, without what follows its logits.
        step_rows, step_seconds: of a draft step; the forward pass alone.
        round_draft: drafting of a round as its draft sees it, seconds.
        round_verify: what follows the logits of its pass, seconds.
        round_seconds: a round as its stream sees it.
        tested, accepted: by offset; tested are those that all before them held for.
        speed: tokens a second of all streams together.
    """

    gamma: float
    pass_tokens: float
    pass_seconds: float
    step_rows: float
    step_seconds: float
    round_draft: float
    round_verify: float
    round_seconds: float
    tested: tuple[float, ...]
    accepted: tuple[float, ...]
    speed: float


def measure(
    address: str, temperature: float, texts: Sequence[str] = PROMPTS, *, ignore_eos: bool = False
) -> dict[str, Any]:
    """Costs and acceptance, as `draftproof plan --from` reads them.

    Args:
        address: an orchestrator's.
        temperature: of the requests.
        texts: what they ask.
        ignore_eos: whether they go on after it.

    Raises:
        RequestError: no orchestrator answers there, or it doesn't say where its workers' metrics are.
    """
    workers = metrics_of(address)

    def read() -> Mapping[str, float]:
        return sums(workers)

    with Client(address) as client:
        chat = client.info().chat_template
        prompts = [{"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text} for text in texts]
        common = {"temperature": temperature, "max_tokens": TOKENS, "ignore_eos": ignore_eos}

        turns = cycle(prompts)

        def ask(gamma: int, streams: int) -> Load:
            return load(client, [{**next(turns), **common, "gamma": gamma} for _ in range(streams)], read)

        ask(GAMMA, 1)  # whatever is built on first use
        return fit([ask(0, 1), *(ask(GAMMA, 1) for _ in range(ALONE)), ask(GAMMA, TOGETHER), ask(0, TOGETHER)])


def load(client: Client, calls: Sequence[Mapping[str, Any]], read: Read) -> Load:
    """Runs requests at once and takes the means of what they and the workers say."""
    before, begin = read(), time.perf_counter()
    with ThreadPoolExecutor(len(calls)) as pool:
        done: list[Completion] = list(pool.map(lambda call: client.generate(**call), calls))
    seconds, after = time.perf_counter() - begin, read()

    def grown(name: str) -> float:
        return after.get(f"draftproof_{name}", 0.0) - before.get(f"draftproof_{name}", 0.0)

    stats = [one.stats for one in done]
    rounds = sum(one.rounds for one in stats)
    longest = max(len(one.drafted_per_position) for one in stats)
    accepted = [_total(one.accepted_per_position for one in stats)(i) for i in range(longest)]
    drafted = [_total(one.drafted_per_position for one in stats)(i) for i in range(longest)]
    # a proposal is tested where the one before it held
    tested = [min(there, accepted[i - 1] if i else there) for i, there in enumerate(drafted)]
    steps = grown("draft_step_blocks_count")
    decoding = sum(one.time.total - one.time.first_token for one in stats)
    return Load(
        gamma=sum(one.drafted for one in stats) / rounds,
        pass_tokens=grown("forward_tokens_sum") / grown("forward_tokens_count"),
        pass_seconds=grown("forward_seconds_sum") / grown("forward_seconds_count"),
        step_rows=grown("draft_step_blocks_sum") / steps if steps else 0.0,
        step_seconds=grown("draft_forward_seconds_total") / steps if steps else 0.0,
        round_draft=sum(one.time.draft for one in stats) / rounds,
        round_verify=sum(one.time.verify for one in stats) / rounds,
        round_seconds=decoding / max(1, rounds - len(stats)),
        tested=tuple(tested),
        accepted=tuple(accepted),
        speed=sum(one.committed for one in stats) / seconds,
    )


def fit(loads: Sequence[Load]) -> dict[str, Any]:
    """Costs from loads of one stream and of several, with and without proposals: lines through passes and steps."""
    base, token = line([(one.pass_tokens, one.pass_seconds + one.round_verify) for one in loads])
    drafting = [one for one in loads if one.gamma > 0]
    single = [one for one in drafting if one.step_rows <= 1.01] or drafting
    # what drafting takes beside the model is part of a step; drafted ahead it is hidden, but its pass is the least
    step = sum(one.round_draft for one in single) / sum(one.gamma for one in single)
    step = max(step, min(one.step_seconds for one in single))
    _, row = line([(one.step_rows, one.step_seconds) for one in drafting])
    alone = [one for one in loads if not one.gamma]
    overhead = min(one.round_seconds - base - token * one.pass_tokens for one in alone)
    longest = max(len(one.tested) for one in drafting)
    tested = [_total(one.tested for one in drafting)(i) for i in range(longest)]
    accepted = [_total(one.accepted for one in drafting)(i) for i in range(longest)]
    return {
        "draft_step": step,
        "draft_row": row,
        "pass_base": base,
        "pass_token": token,
        "overhead": max(0.0, overhead),
        "acceptance": list(per_position(tested, accepted)),
    }


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Least-squares intercept and slope, neither of them negative."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread > 1e-9 else 0.0
    slope = min(max(0.0, slope), mean_y / mean_x if mean_x else 0.0)
    return mean_y - slope * mean_x, slope


def metrics_of(address: str) -> tuple[str, ...]:
    """Addresses of the workers' metrics, from their orchestrator.

    An orchestrator learns them from its first probe of a worker, so one that has just started is asked again.

    Raises:
        UnavailableError: there is none, or a worker serves no metrics.
    """
    import grpc

    deadline = time.monotonic() + PROBED_SECONDS
    try:
        with channel(address) as wire:
            stub = orchestrator_pb2_grpc.OrchestratorServiceStub(wire)
            while True:
                workers = stub.ListWorkers(orchestrator_pb2.ListWorkersRequest(), timeout=10).workers
                silent = [worker.name for worker in workers if not worker.metrics_address]
                if workers and not silent:
                    return tuple(worker.metrics_address for worker in workers)
                if time.monotonic() > deadline:
                    break
                time.sleep(0.2)
    except grpc.RpcError as error:
        raise UnavailableError(f"no orchestrator answers at {address} ({error})") from error
    who = f"{', '.join(silent)} of {address}" if silent else f"the workers of {address}"
    raise UnavailableError(f"{who} serve no metrics; start them with --worker-metrics")


def sums(addresses: Sequence[str]) -> dict[str, float]:
    """All series of all workers, summed by sample name."""
    found: dict[str, float] = {}
    for address in addresses:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
            text = reply.read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def _total(rows: Any) -> Callable[[int], float]:
    held = [tuple(row) for row in rows]
    return lambda i: float(sum(row[i] for row in held if i < len(row)))
