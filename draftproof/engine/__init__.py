"""Models behind one small seam: loading, KV slots with rollback, one ragged batched forward pass, tokenizers."""
