"""Benchmarks: each prints ratios measured in one run and leaves JSON beside them."""
