"""What a relay makes of attempts that a script plays."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from draftproof.errors import (
    InternalError,
    InvalidArgumentError,
    NumericsError,
    OverloadedError,
    PeerUnavailableError,
    QuarantinedError,
    RequestError,
    UnavailableError,
)
from draftproof.metrics.cluster import OrchestratorMetrics
from draftproof.v1 import fingerprint_pb2, generation_pb2, sampling_pb2, verdict_pb2
from draftproof.wire import params as wire_params
from orchestrator import relay as module
from orchestrator.relay import Relay, RelayConfig
from orchestrator.routing import Route, Router, Wish
from orchestrator.workers import Fleet, Role, State, Worker

pb = generation_pb2.GenerateResponse
Script = list[list[generation_pb2.GenerateResponse | RequestError]]
KEY = bytes(range(32))


def started(drafter: str = "d", gamma: int = 4, **fields: Any) -> generation_pb2.GenerateResponse:
    return pb(
        started=generation_pb2.Started(
            **{"prompt_ids": [1, 2], "request_key": KEY, "gamma": gamma, "drafter": drafter} | fields
        )
    )


def chunk(*ids: int, lossy: bool = False) -> generation_pb2.GenerateResponse:
    tokens = [verdict_pb2.Token(id=i, text="x", source=verdict_pb2.TOKEN_SOURCE_ACCEPTED) for i in ids]
    return pb(chunk=generation_pb2.Chunk(tokens=tokens, examined=len(ids), accepted=len(ids), not_lossless=lossy))


def finished(rounds: int, lossless: bool = True) -> generation_pb2.GenerateResponse:
    stats = verdict_pb2.SpeculationStats(rounds=rounds, drafted=2 * rounds, accepted=2 * rounds)
    return pb(finished=generation_pb2.Finished(finish_reason=1, stats=stats, lossless=lossless))


class Stage:
    """Plays attempts and keeps what each was asked."""

    def __init__(self, script: Script, monkeypatch: pytest.MonkeyPatch, **sampling: Any) -> None:
        self.script = script
        self.requests: list[generation_pb2.GenerateRequest] = []
        self.routes: list[tuple[str, ...]] = []
        self.fleet = Fleet()
        for name in ("target-a", "target-b", "draft-a", "draft-b"):
            role = Role.TARGET if name.startswith("target") else Role.DRAFT
            print_ = fingerprint_pb2.Fingerprint(weights_sha256=role.value.encode())
            self.fleet.add(Worker(name, role, State.READY, fingerprint=print_, max_gamma=8))
        self.metrics = OrchestratorMetrics(CollectorRegistry())
        request = generation_pb2.GenerateRequest(text="hi", sampling=sampling_pb2.SamplingParams(**sampling))
        config = RelayConfig(no_worker=0.2, same_draft=0.1, barren=3)
        self.relay = Relay(
            request, wire_params.from_proto(request.sampling), self.fleet, Router(), config, self.metrics, None
        )
        monkeypatch.setattr(module, "attempt", self.attempt)

    async def attempt(
        self, request: generation_pb2.GenerateRequest, route: Route, patience: Any, timeout: Any
    ) -> AsyncGenerator[generation_pb2.GenerateResponse, None]:
        kept = generation_pb2.GenerateRequest()
        kept.CopyFrom(request)
        self.requests.append(kept)
        self.routes.append(tuple(worker.name for worker in route.workers))
        for event in self.script.pop(0):
            if isinstance(event, RequestError):
                raise event
            yield event

    async def play(self) -> list[generation_pb2.GenerateResponse]:
        events = [event async for event in self.relay.events()]
        assert not self.script
        return events


def ids(events: Sequence[generation_pb2.GenerateResponse]) -> list[int]:
    return [token.id for event in events for token in event.chunk.tokens]


LOST = UnavailableError("gone")


async def test_attempts_become_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(
        [[started(), chunk(1, 2), chunk(3, 4), LOST], [LOST], [started(), chunk(5, 6), finished(1)]], monkeypatch
    )
    events = await stage.play()
    assert [event.WhichOneof("event") for event in events] == ["started", "chunk", "chunk", "chunk", "finished"]
    assert ids(events) == [1, 2, 3, 4, 5, 6]
    assert [list(r.resume.output_ids) for r in stage.requests] == [[], [1, 2, 3, 4], [1, 2, 3, 4]]
    assert [r.resume.request_key for r in stage.requests] == [b"", KEY, KEY]
    end = events[-1].finished
    assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (2, 6)
    assert (end.stats.rounds, end.stats.drafted, end.stats.accepted) == (3, 6, 6)
    assert end.stats.time.total_ns > 0
    assert stage.metrics.fallbacks == {"draft_lost": 2, "no_draft": 1}
    assert stage.routes[0] == ("draft-a", "target-a")
    assert stage.routes[1] == ("draft-b", "target-a")
    assert stage.routes[2] == ("target-a",), "both drafts are gone"


@pytest.mark.parametrize(("first", "second", "end"), [(True, False, True), (False, True, True), (False, False, False)])
async def test_lossless_is_carried_over_attempts(
    monkeypatch: pytest.MonkeyPatch, first: bool, second: bool, end: bool
) -> None:
    stage = Stage(
        [[started(), chunk(1, lossy=first), LOST], [started(), chunk(2, lossy=second), finished(1, end)]], monkeypatch
    )
    assert not (await stage.play())[-1].finished.lossless


async def test_a_seeded_request_keeps_its_gamma_and_says_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(
        [[started(gamma=3), chunk(1), LOST], [started(gamma=3), chunk(2), LOST], [started("", 0), finished(0)]],
        monkeypatch,
        seed=1,
    )
    events = await stage.play()
    assert [r.sampling.gamma for r in stage.requests] == [0, 3, 3]
    assert [r.sampling.HasField("gamma") for r in stage.requests] == [False, True, True]
    notes = " ".join(events[-1].finished.notes)
    assert "drafter d with gamma 3 became none with gamma 0" in notes


async def test_waiting_for_the_same_draft_is_no_waiting_for_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage([[started("", 0), finished(0)]], monkeypatch, seed=1)
    stage.relay._config = replace(stage.relay._config, no_worker=0.1, same_draft=0.3)
    for draft in stage.fleet.ready(Role.DRAFT):
        draft.turn(State.SUSPECT)
    events = await stage.play()
    assert stage.routes == [("target-a",)], "it goes on without a draft; a target was there all the time"
    assert any("no draft was ready" in note for note in events[-1].finished.notes)


async def test_without_a_target_both_waits_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage([], monkeypatch, seed=1)
    for target in stage.fleet.ready(Role.TARGET):
        target.turn(State.SUSPECT)
    with pytest.raises(PeerUnavailableError, match="no target is ready"):
        await stage.play()


@pytest.mark.parametrize("sampling", [{}, {"seed": 1, "temperature": 0.0}])
async def test_others_are_free_in_their_gamma(monkeypatch: pytest.MonkeyPatch, sampling: dict[str, Any]) -> None:
    stage = Stage([[started(), chunk(1), LOST], [started("e", 2), finished(0)]], monkeypatch, **sampling)
    events = await stage.play()
    assert not stage.requests[1].sampling.HasField("gamma")
    assert not any("may differ" in note for note in events[-1].finished.notes)


@pytest.mark.parametrize("error", [InvalidArgumentError("no"), NumericsError("nan")])
async def test_the_caller_s_own_errors_are_not_retried(monkeypatch: pytest.MonkeyPatch, error: RequestError) -> None:
    stage = Stage([[started(), error]], monkeypatch)
    with pytest.raises(type(error)):
        await stage.play()
    assert not stage.metrics.fallbacks


async def test_attempts_that_bring_nothing_come_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    error = InternalError("a bug")
    stage = Stage([[started(), error]] * 4, monkeypatch)
    with pytest.raises(InternalError):
        await stage.play()


async def test_progress_forgives(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(
        [[started(), chunk(i), InternalError("a bug")] for i in range(10)] + [[started(), finished(0)]], monkeypatch
    )
    assert ids(await stage.play()) == list(range(10))


async def test_a_running_request_waits_out_a_full_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    full = OverloadedError("full", metadata={"setting": "queue_limit"}, retry_delay=0.001)
    stage = Stage([[started(), chunk(1), LOST], *[[full]] * 10, [started(), finished(0)]], monkeypatch)
    await stage.play()
    fresh = Stage([[full]] * 4, monkeypatch)
    with pytest.raises(OverloadedError):
        await fresh.play()


async def test_another_key_or_prompt_is_no_continuation(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(
        [
            [started(), chunk(1), LOST],
            [started(request_key=bytes(32)), chunk(9)],
            [started(prompt_ids=[3]), chunk(9)],
            [started(), chunk(2), finished(1)],
        ],
        monkeypatch,
    )
    assert ids(await stage.play()) == [1, 2]


async def test_a_target_that_the_draft_can_t_reach_is_left_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = PeerUnavailableError("can't be reached")
    stage = Stage([[started(), chunk(1), lost], [started(), chunk(2), finished(1)]], monkeypatch)
    await stage.play()
    assert [route[-1] for route in stage.routes] == ["target-a", "target-b"]
    assert stage.metrics.fallbacks == {"target_lost": 1}
    worker = stage.fleet.get("target-a")
    assert worker is not None
    assert worker.state is State.READY, "the probe will say"


async def test_a_draft_that_the_target_s_audit_caught_is_left_for_another_and_its_target_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caught = QuarantinedError("lying")
    stage = Stage([[started(), chunk(1), caught], [caught], [started(), chunk(2), finished(1)]], monkeypatch)
    await stage.play()
    assert stage.routes == [("draft-a", "target-a"), ("draft-b", "target-a"), ("target-a",)]
    assert stage.metrics.fallbacks == {"quarantined": 2, "no_draft": 1}
    draft, target = stage.fleet.get("draft-a"), stage.fleet.get("target-a")
    assert draft is not None
    assert target is not None
    assert draft.state is State.READY, "other targets may think better of it"
    route = stage.relay._router.choose(stage.fleet, Wish())
    assert route is not None
    assert (route.draft, route.target) == (None, target), "nor is it tried at once by the next request"
