"""A service loads its model on the thread that computes with it."""

from __future__ import annotations

import threading

import pytest

import draft_service.app
import target_service.app
from draft_service.app import DraftConfig
from draftproof.engine import loading
from draftproof.errors import ModelLoadError
from draftproof.serving.model_thread import ModelThread, aside
from draftproof.serving.options import ListenConfig
from target_service.app import TargetConfig


async def test_a_call_before_the_loop_runs_where_later_ones_do() -> None:
    thread = ModelThread("one")
    first = thread.call(threading.get_ident)
    assert first == await thread.run(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        thread.call(divmod, 7, 0)
    thread.stop()


def test_services_load_on_the_models_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def broken(*_: object, **__: object) -> None:
        names.append(threading.current_thread().name)
        raise ModelLoadError("broken")

    monkeypatch.setattr(loading, "load_tokenizer", lambda _: None)
    monkeypatch.setattr(loading, "load_engine", broken)
    listen = ListenConfig(port=0)
    with pytest.raises(ModelLoadError, match="broken"):
        target_service.app.load(TargetConfig(listen=listen))
    with pytest.raises(ModelLoadError, match="broken"):
        draft_service.app.load(DraftConfig(drafter="model", listen=listen))
    assert [name.split("_")[0] for name in names] == ["model", "draft"]


async def test_what_computes_aside_leaves_no_thread() -> None:
    before = threading.active_count()
    thread = await aside(threading.current_thread)
    assert thread is not threading.current_thread()
    thread.join(20.0)
    assert not thread.is_alive()
    assert threading.active_count() == before
