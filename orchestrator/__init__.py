"""The orchestrator: places workers on a Ray cluster, routes requests, and carries them over failures."""
