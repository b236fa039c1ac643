"""A tiny GRPO loop on the embedded model: rollouts by Draftproof, gradients by plain PyTorch, new weights every step.

    python examples/grpo.py --runs 3 --out grpo.json

Starts a target, and for each run a draft beside it that replays the policy's earlier rollouts. The reward is the share
of tokens with an "e" in them, which moves within a few steps. Both arms differ in γ alone, so their curves must agree;
what is compared is the last steps' reward, by all ways to deal the runs to two arms.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from draftproof import Client, RetryPolicy, Rollout
from draftproof.engine import embedded
from draftproof.serving.lifecycle import PARENT

PROMPTS = ["The sea is", "My neighbour told me that", "In the morning we", "A good book is one"]
SAMPLES = 8
TOKENS = 16
GAMMA = {"target": 0, "speculative": 4}
TRAINED_LAYERS = 4
CLIP = 0.2
LAST = 3
"""Steps whose mean reward is a run's result."""
PATIENT = RetryPolicy(unavailable=300.0)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a run.

    Attributes:
        reward: mean over the rollouts.
        rollout_seconds, train_seconds, update_seconds: its three phases.
        drift: largest distance between the log-probability a token came with and the trainer's own.
        drafted, accepted, target_steps, tokens: of the rollouts.
    """

    reward: float
    rollout_seconds: float
    train_seconds: float
    update_seconds: float
    drift: float
    drafted: int
    accepted: int
    target_steps: int
    tokens: int

    def __str__(self) -> str:
        return (
            f"reward {self.reward:.3f}, rollouts {self.rollout_seconds:.1f} s, training {self.train_seconds:.1f} s,"
            f" update {self.update_seconds:.1f} s, {self.accepted} of {self.drafted} proposals accepted,"
            f" {self.tokens / self.target_steps:.2f} tokens a step, drift {self.drift:.1e}"
        )


class Trainer:
    """The policy, and one clipped step of GRPO over a batch of rollouts."""

    def __init__(self, folder: Path, rate: float) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.model.requires_grad_(False)
        layers = self.model.get_decoder().layers[-TRAINED_LAYERS:]
        self.optimizer = torch.optim.Adam(layers.requires_grad_(True).parameters(), lr=rate)

    def step(self, rollouts: list[Rollout], rewards: list[list[float]]) -> float:
        """Learns from rollouts; the largest distance between their log-probabilities and the policy's."""
        drift, losses = 0.0, []
        for rollout, scores in zip(rollouts, rewards, strict=True):
            spread = statistics.pstdev(scores) + 1e-6
            advantages = torch.tensor([(score - statistics.fmean(scores)) / spread for score in scores])
            # samples of one prompt that end early are as long as the others: ignore_eos
            old = torch.tensor([sample.raw_logprobs for sample in rollout.samples])
            new = self.logprobs(rollout)
            drift = max(drift, float((new.detach() - old).abs().max()))
            ratio = (new - old).exp()
            gain = torch.minimum(ratio * advantages[:, None], ratio.clamp(1 - CLIP, 1 + CLIP) * advantages[:, None])
            losses.append(-gain.mean())
        self.optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        self.optimizer.step()
        return drift

    def logprobs(self, rollout: Rollout) -> Tensor:
        """log p [n, TOKENS] of the samples' tokens."""
        ids = torch.tensor([[*c.prompt_ids, *c.token_ids] for c in rollout.completions])
        states = self.model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[:, -TOKENS - 1 : -1]
        logp = self.model.get_output_embeddings()(states).log_softmax(-1)
        return logp.gather(-1, ids[:, -TOKENS:, None])[..., 0]


def reward(rollout: Rollout) -> list[float]:
    """The share of tokens with an "e", of each sample."""
    return [statistics.fmean("e" in token.text for token in sample.result().tokens) for sample in rollout.samples]


def run(
    arm: str, steps: int, target: Client, draft: Client, original: Path, rate: float, folder: Path
) -> Iterator[Step]:
    """One run from the original weights on; every rollout draws fresh random numbers, so no two runs are alike."""
    target.update_weights(original / "model.safetensors")
    trainer = Trainer(original, rate)
    for _ in range(steps):
        begin = time.monotonic()
        rollouts = draft.rollout(PROMPTS, n=SAMPLES, max_tokens=TOKENS, ignore_eos=True, gamma=GAMMA[arm])
        rolled = time.monotonic()
        rewards = [reward(rollout) for rollout in rollouts]
        drift = trainer.step(rollouts, rewards)
        trained = time.monotonic()
        trainer.model.save_pretrained(folder)
        target.update_weights(folder / "model.safetensors")
        stats = [completion.stats for rollout in rollouts for completion in rollout.completions]
        yield Step(
            reward=statistics.fmean(itertools.chain.from_iterable(rewards)),
            rollout_seconds=rolled - begin,
            train_seconds=trained - rolled,
            update_seconds=time.monotonic() - trained,
            drift=drift,
            drafted=sum(s.drafted for s in stats),
            accepted=sum(s.accepted for s in stats),
            target_steps=sum(s.rounds for s in stats),
            tokens=sum(s.committed for s in stats),
        )


@contextmanager
def server(module: str, *options: str) -> Iterator[str]:
    """A service of Draftproof on a free port; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", module, "--port", str(port), "--log-level", "warning", *options]
    # a killed example can't stop its servers: they watch it, and drain when it is gone
    process = subprocess.Popen(command, env={**os.environ, PARENT: str(os.getpid())})
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def result(steps: list[Step]) -> float:
    """What a run has reached."""
    return statistics.fmean(step.reward for step in steps[-LAST:])


def interval(a: list[float], b: list[float]) -> tuple[float, float]:
    """The middle 95 % of the difference of means, over all ways to deal the runs to two arms."""
    pooled, found = [*a, *b], []
    for chosen in itertools.combinations(range(len(pooled)), len(a)):
        first = [pooled[i] for i in chosen]
        second = [pooled[i] for i in range(len(pooled)) if i not in chosen]
        found.append(statistics.fmean(first) - statistics.fmean(second))
    found.sort()
    cut = int(0.025 * len(found))
    return found[cut], found[-1 - cut]


def main() -> None:
    """Runs every arm with every seed by turns, then compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", choices=list(GAMMA), default=list(GAMMA))
    parser.add_argument("--runs", type=int, default=3, help="of each arm")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--model", type=Path, help="folder of another model")
    parser.add_argument("--rate", type=float, default=2e-4, help="learning rate")
    parser.add_argument("--out", type=Path, help="where to write every step, as JSON")
    args = parser.parse_args()
    original = args.model or embedded.prepare()
    model = ("--model", str(original))
    runs: dict[str, list[list[Step]]] = {arm: [] for arm in args.arms}
    with (
        tempfile.TemporaryDirectory() as folder,
        server("target_service", *model, "--allow-weight-updates", "--dtype", "float32", "--slots", "16") as address,
        Client(address, retries=PATIENT) as target,
    ):
        target.info(timeout=300.0)
        for number, arm in itertools.product(range(args.runs), args.arms):
            # a draft of its own for each run: what it remembers is this policy's
            with (
                server("draft_service", *model, "--target", address, "--replay", "16") as at,
                Client(at, retries=PATIENT) as draft,
            ):
                draft.info(timeout=300.0)
                runs[arm].append([])
                for step in run(arm, args.steps, target, draft, original, args.rate, Path(folder)):
                    runs[arm][-1].append(step)
                    print(f"{arm} {number}.{len(runs[arm][-1])}: {step}", flush=True)
            if args.out:
                args.out.write_text(json.dumps({a: [[asdict(s) for s in r] for r in rs] for a, rs in runs.items()}))
    results = {arm: [result(steps) for steps in found] for arm, found in runs.items()}
    for arm, found in results.items():
        print(f"{arm}: last reward {statistics.fmean(found):.3f} ({', '.join(f'{r:.3f}' for r in found)})")
    if len(results) == len(GAMMA):
        low, high = interval(results["speculative"], results["target"])
        difference = statistics.fmean(results["speculative"]) - statistics.fmean(results["target"])
        times = {arm: sum(s.rollout_seconds for steps in found for s in steps) for arm, found in runs.items()}
        print(f"difference {difference:+.3f}, 95 % of all deals in [{low:+.3f}, {high:+.3f}]")
        print(f"rollouts {times['target'] / times['speculative']:.2f} times as fast with speculation")


if __name__ == "__main__":
    main()
