"""Who serves a request."""

from __future__ import annotations

from typing import Any

import pytest

from draftproof.v1 import fingerprint_pb2, generation_pb2
from orchestrator.routing import Router, Wish, prefix_digests
from orchestrator.workers import Fleet, Role, State, Worker


def worker(name: str, **fields: Any) -> Worker:
    role = Role.TARGET if name.startswith("t") else Role.DRAFT
    weights = fields.pop("weights", b"w" + name[:1].encode())
    print_ = fingerprint_pb2.Fingerprint(
        tokenizer_sha256=fields.pop("tokenizer", b"t"), vocab_size=10, sampling_contract=1, weights_sha256=weights
    )
    return Worker(name, role, **{"state": State.READY, "slots": 4, "max_gamma": 8, "fingerprint": print_} | fields)


def fleet(*workers: Worker) -> Fleet:
    made = Fleet()
    for each in workers:
        made.add(each)
    return made


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def names(router: Router, workers: Fleet, wish: Wish | None = None) -> tuple[str | None, str] | None:
    route = router.choose(workers, wish or Wish())
    return None if route is None else (route.draft.name if route.draft else None, route.target.name)


def test_least_outstanding_work_per_slot_wins() -> None:
    a, b = worker("t-a", outstanding=3, slots=4), worker("t-b", outstanding=4, slots=8)
    d, e = worker("d-a", outstanding=1), worker("d-b")
    assert names(Router(), fleet(a, b, d, e)) == ("d-b", "t-b")
    b.outstanding = 7
    assert names(Router(), fleet(a, b, d, e)) == ("d-b", "t-a")


def test_sessions_that_others_keep_waiting_count_and_ours_count_once() -> None:
    busy = worker("t-a", outstanding=6, waiting=2, slots=4)
    assert busy.load == 6 / 4, "two of ours wait, as we know"
    busy.waiting = 5
    assert busy.load == 9 / 4


def test_no_target_no_route_and_no_draft_target_only() -> None:
    router = Router()
    assert names(router, fleet(worker("d-a"))) is None
    assert names(router, fleet(worker("t-a"))) == (None, "t-a")
    for state in (State.STARTING, State.SUSPECT, State.DRAINING):
        assert names(router, fleet(worker("t-a", state=state))) is None
        assert names(router, fleet(worker("t-a"), worker("d-a", state=state))) == (None, "t-a")


def test_gamma_0_goes_to_the_target_alone() -> None:
    assert names(Router(), fleet(worker("t-a"), worker("d-a")), Wish(gamma=0)) == (None, "t-a")


def test_drafts_that_don_t_fit_are_not_asked() -> None:
    workers = fleet(worker("t-a"), worker("d-a", tokenizer=b"other"))
    assert names(Router(), workers) == (None, "t-a")


def test_a_resumed_request_meets_the_same_weights() -> None:
    workers = fleet(
        worker("t-a", weights=b"1"),
        worker("t-b", weights=b"2", outstanding=4),
        worker("d-a", weights=b"3"),
        worker("d-b", weights=b"4", outstanding=4),
    )
    assert names(Router(), workers, Wish(draft_weights=b"4", target_weights=b"2")) == ("d-b", "t-b")
    # another draft keeps the law, another target does not
    assert names(Router(), workers, Wish(draft_weights=b"5")) == ("d-a", "t-a")
    assert names(Router(), workers, Wish(target_weights=b"5")) is None


def test_who_has_just_failed_is_avoided_until_its_next_life() -> None:
    target, other, draft = worker("t-a"), worker("t-b", outstanding=4), worker("d-a")
    workers, router = fleet(target, other, draft), Router()
    wish = Wish(avoid=frozenset({target.life, draft.life}))
    assert names(router, workers, wish) == (None, "t-b")
    assert names(router, fleet(target), wish) == (None, "t-a"), "better than none"
    draft.turn(State.SUSPECT)
    draft.turn(State.READY)
    assert names(router, workers, wish) == ("d-a", "t-b")


def test_a_pair_that_can_t_talk_is_kept_apart_for_a_while() -> None:
    clock = Clock()
    router = Router(apart=2.0, clock=clock)
    target, draft, second = worker("t-a"), worker("d-a"), worker("d-b", outstanding=1)
    workers = fleet(target, draft, second)
    router.parted(draft, target)
    assert names(router, workers) == ("d-b", "t-a")
    router.parted(second, target)
    assert names(router, workers) == (None, "t-a")
    clock.now += 2.1
    assert names(router, workers) == ("d-a", "t-a")
    router.parted(draft, target)
    target.turn(State.READY)
    assert names(router, workers) == ("d-a", "t-a"), "a new life"


def prompt(text: str) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(text=text)


def test_a_target_that_holds_the_prompt_wins_while_it_is_hardly_busier() -> None:
    a, b = worker("t-a"), worker("t-b")
    workers, router = fleet(a, b), Router(slack=0.5)
    system = "s" * 300
    wish = Wish(prefix_digests(prompt(system + "one")))
    router.served(wish, b)
    again = Wish(prefix_digests(prompt(system + "two")))
    assert names(router, workers, again) == (None, "t-b")
    assert names(router, workers, Wish(prefix_digests(prompt("x" * 300)))) == (None, "t-a")
    b.outstanding = 2
    assert names(router, workers, again) == (None, "t-b")
    b.outstanding = 3
    assert names(router, workers, again) == (None, "t-a")


def test_what_is_remembered_is_bounded() -> None:
    router = Router(remembered=10)
    for i in range(50):
        router.served(Wish(prefix_digests(prompt(f"{i}" * 200))), worker("t-a"))
    assert len(router._seen) == 10


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        (prompt("a" * 1000), prompt("a" * 1000), 7),
        (prompt("a" * 1000), prompt("a" * 500 + "b" * 500), 3),
        (prompt("a" * 100), prompt("a" * 100), 0),
        (
            generation_pb2.GenerateRequest(token_ids={"ids": range(100)}),
            generation_pb2.GenerateRequest(token_ids={"ids": [*range(70), 5]}),
            2,
        ),
        (
            generation_pb2.GenerateRequest(chat={"messages": [{"role": "system", "content": "s" * 200}]}),
            generation_pb2.GenerateRequest(
                chat={"messages": [{"role": "system", "content": "s" * 200}, {"role": "user", "content": "u"}]}
            ),
            1,
        ),
    ],
)
def test_equal_beginnings_have_equal_digests(
    first: generation_pb2.GenerateRequest, second: generation_pb2.GenerateRequest, shared: int
) -> None:
    a, b = prefix_digests(first), prefix_digests(second)
    assert [x == y for x, y in zip(a, b, strict=False)].count(True) == shared
    assert a[:shared] == b[:shared]


async def test_calls_of_a_lost_worker_are_ended() -> None:
    class Call:
        cancelled = 0

        def cancel(self) -> None:
            self.cancelled += 1

    lost, call = worker("t-a"), Call()
    lost.calls.add(call)
    lost.abandon()
    assert call.cancelled == 1
