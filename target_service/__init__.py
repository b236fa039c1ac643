"""The target server: verifies proposals of many sessions in one batched forward pass."""
