"""Sizing a cluster before it exists: what it will do, from what its parts cost. Pure arithmetic."""
