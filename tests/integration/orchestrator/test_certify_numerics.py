"""How far a target's p is from float32, as certify measures it: nothing in float32, something in bfloat16."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from draftproof.cli import certify_numerics
from draftproof.engine.config import DType, ModelConfig
from draftproof.engine.loading import load_engine, load_tokenizer
from draftproof.errors import UnsupportedError
from draftproof.testing.tiny import make_tiny_model
from target_service.app import TargetApp, TargetConfig
from tests.integration.services.harness import Kit


@pytest.mark.parametrize(("dtype", "least", "most"), [("float32", 0.0, 1e-5), ("bfloat16", 1e-4, 0.05)])
async def test_distance_from_float32(tmp_path: Path, dtype: DType, least: float, most: float) -> None:
    folder = make_tiny_model(tmp_path / "tiny", vocab_size=64, spread=2.0)
    config = ModelConfig(model=str(folder), dtype=dtype, slots=2, max_context=100)
    engine, tokenizer, kit = load_engine(config), load_tokenizer(config), Kit()
    try:
        target = await kit._start(TargetApp(engine, tokenizer, TargetConfig()))
        client = kit.client(target.address)
        info = await client.info()
        found = await certify_numerics.measure(client, info, (1, 2, 3), str(folder), Console(quiet=True))
        assert [row["tokens"] for row in found["by_length"]] == [16, 64]
        assert all(least <= row["mean"] <= row["max"] <= most for row in found["by_length"])
        other = replace(info, target=replace(info.target, vocab_size=65))
        with pytest.raises(UnsupportedError, match="another model"):
            await certify_numerics.measure(client, other, (1, 2, 3), str(folder), Console(quiet=True))
    finally:
        await kit.close()
