"""Fakes, tiny models and statistics for tests of and with Draftproof.

Import the module you need: `table` needs torch alone, `tiny` and `law.target_law` transformers, `statistics` scipy.
"""
