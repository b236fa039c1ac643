"""Acceptance: which proposals stay and what follows them. Pure functions over p, q, proposals and uniforms."""
