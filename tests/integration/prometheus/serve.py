"""One worker of the real services over the table engine, as a process: `python -m … target` or `draft NOISE`."""

from __future__ import annotations

import sys

from draft_service.app import DraftApp, DraftConfig, TargetAddress
from draft_service.drafters.model import ModelDrafter, encoder
from draftproof.serving import logs
from draftproof.serving.lifecycle import App, main
from draftproof.serving.options import ListenConfig
from draftproof.testing.table import ByteTokenizer, TableEngine
from target_service.app import TargetApp, TargetConfig
from target_service.verifier import VerifierConfig

VOCABULARY = 27
SLOTS = 4
MAX_GAMMA = 16


def build(role: str, noise: float) -> App:
    listen = ListenConfig(port=0, metrics_port=0, grace=2.0)
    tokenizer = ByteTokenizer(VOCABULARY, first_byte=ord("a"))
    target = TableEngine(VOCABULARY, delay=0.004, slots=SLOTS, max_context=512)
    if role == "target":
        return TargetApp(target, tokenizer, TargetConfig(listen=listen, verifier=VerifierConfig(max_gamma=MAX_GAMMA)))
    drafter = ModelDrafter(target.draft(noise), encoder("lattice", 128, 12))
    config = DraftConfig(target=TargetAddress(address=""), listen=listen)
    return DraftApp(drafter, tokenizer, VOCABULARY, config)


if __name__ == "__main__":
    logs.configure("info", "json")
    main(lambda: build(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 0.0))
