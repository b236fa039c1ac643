"""One generation as the SDK sees it, without I/O: what to send next, what came back, whether to go on after a failure.

The two clients drive the same object: `next_request`, then `feed` every response, `ended` at the end of the stream and
`pause_after` an error. Everything that decides what the caller sees is here; sync and asyncio only move bytes.
"""

from __future__ import annotations

from draftproof.client import convert
from draftproof.client.folding import Folding
from draftproof.client.retry import Attempts, Deadline, Edges, RetryPolicy
from draftproof.client.types import Chunk, Completion, Start
from draftproof.errors import DrainingError, ProtocolError, RequestError, UnavailableError
from draftproof.v1 import generation_pb2
from draftproof.wire.params import from_proto

MAX_BARREN_RESUMES = 5
"""Resumes in a row that were accepted and brought nothing: the request itself may be what brings the server down."""


class Generation:
    """State of one generation over all its attempts.

    Attributes:
        start: what was decided before the first token, None until it came.
        completion: the folded result, None until the generation finished.
    """

    def __init__(
        self, request: generation_pb2.GenerateRequest, timeout: float, policy: RetryPolicy, edges: Edges | None = None
    ) -> None:
        edges = edges or Edges()
        self.deadline = Deadline(timeout, edges.clock)
        self.start: Start | None = None
        self.completion: Completion | None = None
        self._request = request
        self._given = tuple(request.resume.output_ids)
        self._policy = policy
        self._attempts = Attempts(policy, self.deadline, edges)
        self._folding = Folding(edges.clock, seeded=from_proto(request.sampling).needs_same_blocks)
        self._barren = 0

    def result(self) -> Completion:
        """The completion.

        Raises:
            RuntimeError: the generation isn't finished.
        """
        if self.completion is None:
            raise RuntimeError("the generation isn't finished; iterate to the end of the stream first")
        return self.completion

    def next_request(self) -> generation_pb2.GenerateRequest:
        """What to send now: the request itself, or its continuation from the tokens received so far."""
        if self.start is not None:
            self._request.resume.request_key = self.start.request_key
            del self._request.resume.output_ids[:]
            self._request.resume.output_ids.extend((*self._given, *self._folding.token_ids))
        return self._request

    def feed(self, response: generation_pb2.GenerateResponse) -> Chunk | None:
        """Takes one response; returns what the caller should see of it.

        Raises:
            DrainingError: the server handed the generation back; ask `pause_after` what to do.
            ProtocolError: the server broke the protocol.
        """
        event = response.WhichOneof("event")
        if event == "started":
            self._started(convert.start(response.started))
            return None
        if event == "handed_back":
            raise DrainingError("the server is shutting down and handed the generation back")
        if self.start is None or self.completion is not None:
            raise ProtocolError(f"the server sent {event or 'an empty event'} out of order")
        if event == "chunk":
            chunk = convert.chunk(response.chunk)
            self._folding.add(chunk)
            self._attempts.succeeded()
            self._barren = 0
            return chunk
        if event == "finished":
            self.completion = self._folding.finish(self.start, response.finished)
            return None
        raise ProtocolError("the server sent an event this release doesn't know")

    def ended(self) -> None:
        """The stream ended by itself.

        Raises:
            UnavailableError: before the generation was finished.
        """
        if self.completion is None:
            raise UnavailableError("the server ended the stream before the generation was finished")

    def pause_after(self, error: BaseException) -> float | None:
        """Seconds to wait before `next_request`, None where the error is the caller's to see."""
        if not isinstance(error, RequestError) or self.completion is not None:
            return None
        if self.start is None:
            return self._attempts.pause(error)
        if not self._policy.resume or self._barren > MAX_BARREN_RESUMES:
            return None
        pause = self._attempts.pause(error, patient=True)
        if pause is not None:
            self._folding.interrupted(error)
        return pause

    def _started(self, start: Start) -> None:
        if self.start is None:
            self.start = start
            self._attempts.succeeded()
            return
        if (start.prompt_ids, start.request_key) != (self.start.prompt_ids, self.start.request_key):
            raise ProtocolError("the server resumed another prompt or key than it was asked to")
        self._barren += 1
        self._folding.resumed(self.start, start)
