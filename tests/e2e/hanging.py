"""A service whose model hangs in its third pass: `python -m tests.e2e.hanging target`, or `draft ADDRESS`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

from torch import Tensor

from draft_service.app import DraftApp, DraftConfig, TargetAddress
from draft_service.drafters.model import ModelDrafter, encoder
from draftproof.engine.interface import Row
from draftproof.serving import logs
from draftproof.serving.lifecycle import App, main
from draftproof.serving.options import ListenConfig
from draftproof.testing.table import ByteTokenizer, TableEngine
from target_service.app import TargetApp, TargetConfig

VOCABULARY = 27
LISTEN = ListenConfig(port=0, grace=0.2)


class HangingEngine(TableEngine):
    """Two passes, then one that never returns."""

    def forward(self, rows: Sequence[Row]) -> Tensor:
        """See `Engine.forward`."""
        if self.passes == 2:
            threading.Event().wait()
        return super().forward(rows)


def build(role: str, target: str = "") -> App:
    """A target that hangs or, before a sound target, a draft that does."""
    tokenizer = ByteTokenizer(VOCABULARY, first_byte=ord("a"))
    if role == "target":
        return TargetApp(HangingEngine(VOCABULARY), tokenizer, TargetConfig(listen=LISTEN))
    if role == "sound":
        return TargetApp(TableEngine(VOCABULARY), tokenizer, TargetConfig(listen=LISTEN))
    config = DraftConfig(target=TargetAddress(address=target), listen=LISTEN, stall_timeout=0.2)
    drafter = ModelDrafter(HangingEngine(VOCABULARY), encoder("lattice", 128, 12))
    return DraftApp(drafter, tokenizer, VOCABULARY, config)


if __name__ == "__main__":
    logs.configure("info", "json")
    main(lambda: build(*sys.argv[1:]))
