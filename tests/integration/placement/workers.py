"""Workers over table engines, built inside Ray actors."""

from __future__ import annotations

from draft_service.app import DraftApp, DraftConfig, TargetAddress
from draftproof.errors import ConfigError
from draftproof.serving.options import ListenConfig
from orchestrator.recipes import Server
from target_service.app import TargetApp, TargetConfig
from tests.integration.services.harness import letters, model_drafter, table


def build_target(listen: ListenConfig, slots: int) -> Server:
    return TargetApp(table(slots=slots, delay=0.01), letters(), TargetConfig(listen=listen))


def build_draft(listen: ListenConfig) -> Server:
    tokenizer = letters()
    config = DraftConfig(target=TargetAddress(address=""), listen=listen)
    return DraftApp(model_drafter(table(noise=0.3, slots=32)), tokenizer, tokenizer.vocab_size, config)


def build_nothing(listen: ListenConfig) -> Server:
    raise ConfigError("model", "there is no such model")
