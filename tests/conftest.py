"""Settings that hold for every test."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# Tiny tensors on few cores: more threads only spin. Set before anything imports torch; child processes inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# No test may depend on a model hub.
os.environ["HF_HUB_OFFLINE"] = "1"
# Shared machines stall now and then; how long one example takes says nothing.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests marked gpu where there is no CUDA device."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
