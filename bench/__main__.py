"""`python -m bench`: every benchmark, one after another."""

from __future__ import annotations

import subprocess
import sys

BENCHES = (
    "bench.engine_forward",
    "bench.round_overhead",
    "bench.failover",
    "bench.front_door",
    "bench.gamma",
    "bench.batching",
)


def main() -> None:
    """Runs each in a process of its own, so that none inherits the other's threads or memory."""
    for name in BENCHES:
        print(f"\n== {name}", flush=True)
        subprocess.run([sys.executable, "-m", name], check=True)


if __name__ == "__main__":
    main()
