"""What the SDK says of servers and of their models' laws: plain frozen objects, no protobuf, no gRPC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NextToken:
    """The target's law of one token.

    Attributes:
        prompt_ids: the prompt.
        output_ids: the output so far, after the prompt.
        p: float32 mass of each of the V tokens, in id order, after penalties, temperature and filters.
        weights_version: of the target that said so.
    """

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    p: Sequence[float]
    target_model: str
    weights_version: int


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Identity of a model.

    Attributes:
        tokenizer_sha256: over the token of every id, 32 bytes.
        vocab_size: V, the real vocabulary.
        sampling_contract: version of pipeline and random-number layout.
        weights_sha256: 32 bytes, empty for a drafter without weights.
        weights_version: weight updates since the server started.
    """

    tokenizer_sha256: bytes
    vocab_size: int
    sampling_contract: int
    model: str
    weights_sha256: bytes
    weights_version: int


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What runs at an address and within which limits.

    Attributes:
        role: "draft" or "target".
        version: Draftproof release.
        target: the model that decides the output law.
        draft: the drafter's model, None on a target.
        drafter: name of the drafter, empty on a target.
        max_context: tokens.
        slots: requests that run at once.
        max_gamma: largest gamma accepted.
        default_gamma: gamma where a request leaves it unset.
        max_message_bytes: largest message accepted.
        sessions: requests now open.
        chat_template: whether `messages` works.
        targets: addresses of the targets behind a draft server.
    """

    role: str
    version: str
    target: Fingerprint
    draft: Fingerprint | None
    drafter: str
    max_context: int
    slots: int
    max_gamma: int
    default_gamma: int
    max_message_bytes: int
    sessions: int
    chat_template: bool
    targets: tuple[str, ...]
