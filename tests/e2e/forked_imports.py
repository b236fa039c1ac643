"""What services import, most of it late: once for all that are forked. Nothing here starts a thread or touches gRPC."""

# ruff: noqa: F401, RUF100

import transformers.models.llama.modeling_llama

import draft_service.app
import draft_service.drafters.model
import draft_service.drafters.ngram
import draftproof.engine.engine
import draftproof.engine.loading
import draftproof.serving.options
import draftproof.testing.table
import target_service.app
