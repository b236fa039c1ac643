"""The training loop: steps, learning rates, checkpoints."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from draftproof.distill.batches import batches, collate
from draftproof.distill.corpus import Text
from draftproof.distill.loss import Sums
from draftproof.distill.muon import Muon
from draftproof.distill.student import Student


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """How a student is trained.

    Attributes:
        seed: of the order of texts.
        steps: of the whole schedule.
        batch_tokens: of a step, with padding.
        micro_tokens: of a forward pass; a step adds up as many as it needs.
        lr: the highest learning rate.
        warmup: steps of rising rates.
        decay: share of the steps, at the end, in which rates fall to zero.
        tv_share: of total variation in the loss at the beginning; KL has the rest.
        tv_from: share of the steps after which total variation begins to replace KL altogether; it has done so when
            decay is half over.
    """

    seed: int = 0
    steps: int = 1000
    batch_tokens: int = 2048
    micro_tokens: int = 2048
    lr: float = 1.5e-3
    warmup: int = 10
    decay: float = 0.4
    tv_share: float = 0.3
    tv_from: float = 0.6

    def rate(self, step: int) -> float:
        """Learning rate at a step, as a share of the highest."""
        left = (self.steps - step) / max(1.0, self.decay * self.steps)
        return max(0.0, min(1.0, (step + 1) / self.warmup, left))

    def tv(self, step: int) -> float:
        """Share of total variation at a step."""
        end = max(1.0 - self.decay / 2, self.tv_from + 1e-9)
        risen = min(1.0, max(0.0, (step / self.steps - self.tv_from) / (end - self.tv_from)))
        return self.tv_share + (1.0 - self.tv_share) * risen


@dataclass(slots=True)
class Progress:
    """Where training stands, for whoever watches.

    Attributes:
        step: steps done.
        kl, accepted, agreed: of the last steps, averaged: cross entropy, lower bound of α at temperature 1, share of
            positions with the same likeliest token.
        tokens: positions trained on.
    """

    step: int
    kl: float
    accepted: float
    agreed: float
    tokens: int


@dataclass(slots=True)
class Trainer:
    """A student on its way. Deterministic: the same texts, settings and threads give the same weights."""

    student: Student
    config: TrainingConfig
    step: int = 0
    tokens: int = 0
    optimizers: tuple[Optimizer, ...] = field(init=False)

    def __post_init__(self) -> None:
        # a head of its own has rows that are seldom seen; Muon would move them all alike
        matrices = [p for name, p in self.student.trained().items() if p.ndim == 2 and name != "rows"]
        others = [p for name, p in self.student.trained().items() if p.ndim != 2 or name == "rows"]
        self.optimizers = (
            Muon(matrices, lr=self.config.lr),
            AdamW(others, lr=self.config.lr, betas=(0.9, 0.97), weight_decay=0.0),
        )

    def run(self, texts: Sequence[Text], until: int | None = None) -> Iterator[Progress]:
        """Trains on to a step, the last by default, and tells after each where it stands."""
        rank, world = _place()
        per_step = max(1, self.config.batch_tokens // self.config.micro_tokens) * world
        plan: list[list[int]] = []
        at = self.step * per_step
        epoch = 0
        while self.step < (self.config.steps if until is None else min(until, self.config.steps)):
            while len(plan) < at + per_step:
                plan.extend(batches(texts, self.config.micro_tokens, self.config.seed, epoch))
                epoch += 1
            sums = Sums()
            for members in plan[at : at + per_step][rank::world]:
                loss = self.student.loss(collate([texts[i] for i in members]), self.config.tv(self.step), sums)
                (loss * world / per_step).backward()
            at += per_step
            self._update()
            self.tokens += sums.count * world
            yield Progress(
                self.step, sums.kl / sums.count, sums.accepted / sums.count, sums.agreed / sums.count, self.tokens
            )

    def _update(self) -> None:
        rate = self.config.rate(self.step)
        _average([p.grad for p in self.student.trained().values() if p.grad is not None])
        torch.nn.utils.clip_grad_norm_([p for p in self.student.trained().values() if p.grad is not None], 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.config.lr * rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1

    def save(self, path: Path) -> None:
        """Writes a checkpoint; complete or not there."""
        state: dict[str, Any] = {
            "config": asdict(self.config),
            "step": self.step,
            "tokens": self.tokens,
            "head_token_ids": self.student.token_ids,
            "student": {name: parameter.detach() for name, parameter in self.student.trained().items()},
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        part = path.with_suffix(".part")
        torch.save(state, part)
        os.replace(part, path)

    @staticmethod
    def peek(path: Path) -> tuple[Tensor, int]:
        """A checkpoint's head tokens and the steps of its schedule."""
        state = torch.load(path, weights_only=True, mmap=True)
        return state["head_token_ids"], state["config"]["steps"]

    def load(self, path: Path) -> None:
        """Goes on from a checkpoint of the same student."""
        state = torch.load(path, weights_only=True)
        self.step, self.tokens = state["step"], state["tokens"]
        trained = self.student.trained()
        with torch.no_grad():
            for name, tensor in state["student"].items():
                trained[name].copy_(tensor)
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)


def _place() -> tuple[int, int]:
    """(rank, how many processes train this student together)."""
    if not torch.distributed.is_initialized():
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def _average(gradients: Sequence[Tensor]) -> None:
    """Over all processes, in place."""
    _, world = _place()
    if world == 1:
        return
    flat = torch.nn.utils.parameters_to_vector(gradients)
    torch.distributed.all_reduce(flat)
    at = 0
    for gradient in gradients:
        gradient.copy_(flat[at : at + gradient.numel()].view_as(gradient) / world)
        at += gradient.numel()
