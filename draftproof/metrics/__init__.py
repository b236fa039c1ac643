"""Every metric of Draftproof, defined in one place; the registry comes from outside.

Acceptance lives on the target alone, so that sums over processes never count a proposal twice; the orchestrator exports
cluster series under names of its own. All of it is counters: pool them first, divide afterwards.
"""
