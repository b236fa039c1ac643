"""Certifying a cluster from outside: its continuations against the law that its target states. Pure statistics."""
