"""What peers send, checked: sessions and rounds out of messages."""

from __future__ import annotations

import time
from collections.abc import Sequence

import structlog

from draftproof.audit.transform import Interval
from draftproof.engine.interface import Tokenizer
from draftproof.engine.text import TextStream
from draftproof.errors import InvalidArgumentError, ProtocolError, UnsupportedError
from draftproof.metrics.target import TargetMetrics
from draftproof.sampling import rng
from draftproof.sampling.draft_q import DraftQ, MalformedQError
from draftproof.sampling.params import Rule
from draftproof.serving.prompt import check_ids, room
from draftproof.v1 import distribution_pb2, target_pb2
from draftproof.verification import evidence
from draftproof.verification import intake as checks
from draftproof.verification.intake import RefusalKind, RefusalNote, Sent, admit, admit_ids
from draftproof.verification.tree_intake import SentNode, admit_tree
from draftproof.verification.tree_rule import Tree
from draftproof.wire import distribution as wire_distribution
from draftproof.wire import params as wire_params
from target_service.session import Deliver, PendingRound, Session, new_key, stop_ids

log = structlog.get_logger(__name__)


class Intake:
    """Builds sessions and rounds, or refuses them, within the limits of one engine."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int,
        max_context: int,
        max_gamma: int,
        max_unaided: int,
        metrics: TargetMetrics,
        allow_lossy: bool = False,
        trees: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_context = max_context
        self._max_gamma = max_gamma
        self._max_unaided = max_unaided
        self._metrics = metrics
        self._allow_lossy = allow_lossy
        self._trees = trees

    def session(
        self,
        key: tuple[object, int],
        epoch: int,
        request: target_pb2.OpenSession,
        deliver: Deliver,
        weights_version: int,
        weights_sha256: bytes,
        drafter: str,
    ) -> Session:
        """A session that waits for its slot.

        Raises:
            RequestError: the request is out of its limits.
        """
        params = wire_params.from_proto(request.sampling)
        params.check_vocab(self._vocab_size)
        if params.rule.lossy and not self._allow_lossy:
            raise UnsupportedError(
                f"the {params.rule} rule bends the output law; this target was started without --allow-lossy",
                metadata={"field": "rule", "setting": "allow_lossy"},
            )
        if params.rule is Rule.TREE and not self._trees:
            raise UnsupportedError(
                "this target's engine verifies chains alone; use another rule",
                metadata={"field": "rule", "setting": "backend"},
            )
        prompt_ids = list(request.prompt_ids)
        output_ids = list(request.output_ids)
        check_ids(prompt_ids, self._vocab_size, "prompt_ids")
        if output_ids:
            check_ids(output_ids, self._vocab_size, "output_ids")
        left = room(len(prompt_ids) + len(output_ids), self._max_context, None)
        if params.max_tokens is not None:
            left = min(left, params.max_tokens - len(output_ids))
            if left < 1:
                raise InvalidArgumentError.of(
                    "output_ids", f"fewer than max_tokens ({params.max_tokens})", len(output_ids)
                )
        if request.request_key and len(request.request_key) != rng.KEY_BYTES:
            raise InvalidArgumentError.of("request_key", f"{rng.KEY_BYTES} bytes", len(request.request_key))
        return Session(
            key=key,
            epoch=epoch,
            request_id=request.request_id,
            prompt_ids=prompt_ids,
            output_ids=output_ids,
            params=params,
            request_key=request.request_key or new_key(params.seed, prompt_ids, request.sample_index, weights_version),
            weights_version=weights_version,
            weights_sha256=weights_sha256,
            trace_top=request.trace.top_n if request.HasField("trace") else None,
            max_new=left,
            text=TextStream(self._tokenizer, params.stop),
            stop_ids=stop_ids(params, self._tokenizer),
            deliver=deliver,
            lossless=not params.rule.lossy,
            sample_index=request.sample_index,
            continues=bool(request.request_key),
            drafter=drafter,
            audited=not request.request_key and params.seed is None,
        )

    def round(
        self,
        session: Session,
        number: int,
        block: target_pb2.Block,
        quarantined: bool = False,
        audited: bool = False,
    ) -> PendingRound:
        """A block that may ride on a forward pass; proposals that break the rules are cut off (L7, L11).

        Args:
            session: whose.
            number: of the round.
            block: as it was sent.
            quarantined: whether its drafter was caught lying; then no proposal is taken.
            audited: whether the audit examines it.

        Raises:
            RequestError: the block doesn't fit the session.
        """
        arrived_ns = time.monotonic_ns()
        self._check_shape(session, block.proposals)
        if block.unaided > self._max_unaided:
            raise InvalidArgumentError.of("block.unaided", f"at most {self._max_unaided} here", block.unaided)
        if block.start != len(session.tokens):
            raise ProtocolError(f"block starts at {block.start}, the session is at {len(session.tokens)}")
        for proposal in block.proposals:
            self._metrics.encoding(proposal.q)
        found: list[Interval] = []
        if quarantined and block.proposals:
            note = RefusalNote(
                0, RefusalKind.QUARANTINED, "the audit caught this draft lying; it proposes nothing here"
            )
            intake = checks.Intake([], [], note, True)
        elif session.params.rule is Rule.COUPLED:
            intake = admit_ids([proposal.token_id for proposal in block.proposals], self._vocab_size)
        elif session.params.rule is Rule.TREE:
            parents = _parents(block.proposals)
            nodes = [
                SentNode(proposal.token_id, parent, self._decode(proposal.q) if proposal.HasField("q") else None)
                for proposal, parent in zip(block.proposals, parents, strict=True)
            ]
            intake = admit_tree(nodes, session.request_key, block.start)
        else:
            sent = [Sent(proposal.token_id, self._decode(proposal.q)) for proposal in block.proposals]
            intake = admit(sent, session.request_key, block.start, self._vocab_size)
            if audited:
                found = _shown(sent, intake)
        if intake.refusal is not None:
            self._metrics.refusal(intake.refusal.kind)
            log.warning(
                "proposal refused",
                request=session.request_id,
                kind=intake.refusal.kind.name,
                offset=intake.refusal.offset,
                detail=intake.refusal.message,
            )
        return PendingRound(number, intake, arrived_ns, block.unaided, audited, found)

    def _check_shape(self, session: Session, proposals: Sequence[target_pb2.Proposal]) -> None:
        """How long a block is, or how large and deep its tree."""
        count, deepest = len(proposals), session.max_new - 1
        if session.params.rule is Rule.TREE:
            most = min(self._max_gamma, self._max_context - len(session.tokens))
            parents = _parents(proposals)
            for i, parent in enumerate(parents):
                if parent > i:
                    raise InvalidArgumentError.of(f"block.proposals[{i}].parent", f"at most {i}", parent)
            depth = max(Tree([0] * count, parents).depths())
            if depth > deepest:
                raise InvalidArgumentError.of("block.proposals", f"at most {deepest} deep here", depth)
        else:
            most = min(self._max_gamma, deepest)
            for i, proposal in enumerate(proposals):
                if proposal.HasField("parent"):
                    limit = f"unset under the {session.params.rule} rule"
                    raise InvalidArgumentError.of(f"block.proposals[{i}].parent", limit, proposal.parent)
        if count > most:
            raise InvalidArgumentError.of("block.proposals", f"at most {most} long here", count)

    def _decode(self, message: distribution_pb2.Distribution) -> DraftQ | MalformedQError:
        try:
            return wire_distribution.decode(message, self._vocab_size)
        except MalformedQError as error:
            return error


def _shown(sent: Sequence[Sent], intake: checks.Intake) -> list[Interval]:
    """Where proposals lie under their q, as they were sent, up to the first that wasn't verified as sent."""
    shown = []
    for proposal in sent[: len(intake.tokens) + (not intake.lossless)]:
        assert not isinstance(proposal.q, MalformedQError)
        shown.append(evidence.proposed(proposal.q, proposal.token_id))
    return shown


def _parents(proposals: Sequence[target_pb2.Proposal]) -> list[int]:
    """The node that each hangs from."""
    return [proposal.parent if proposal.HasField("parent") else i for i, proposal in enumerate(proposals)]
