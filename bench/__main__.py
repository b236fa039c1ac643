"""`python -m bench [--quick] [NAME …]`: the benchmarks, one after another; then docs/benchmarks.md with its figures.

--quick shows in a few minutes that all of them run; its numbers are worth nothing, and the page keeps what it has.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

QUICK = ("--quick",)
BENCHES: dict[str, tuple[str, ...]] = {
    "stream": QUICK,
    "batch": QUICK,
    "peers": QUICK,
    "gamma": QUICK,
    "distance": QUICK,
    "wire": QUICK,
    "verify": QUICK,
    "plan": QUICK,
    "batching": ("--streams", "1", "4", "--rounds", "1"),
    "engine_forward": ("--rounds", "2", "--dtype", "bfloat16"),
    "engine_parts": ("--rounds", "2", "--tokens", "1", "5"),
    "round_overhead": ("--rounds", "1", "--tokens", "16"),
    "front_door": ("--rounds", "2"),
    "failover": ("--rounds", "1", "--streams", "6", "--tokens", "100"),
}
"""Benches by name, each with its words for a short run."""


def main() -> None:
    """Runs each in a process of its own, so that none inherits the other's threads or memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHES)}; none: all")
    parser.add_argument("--quick", action="store_true", help="short runs")
    args = parser.parse_args()
    for name in args.names or BENCHES:
        print(f"\n== {name}", flush=True)
        subprocess.run([sys.executable, "-m", f"bench.{name}", *(BENCHES[name] if args.quick else ())], check=True)
    if not args.quick:
        subprocess.run([sys.executable, "-m", "bench.page", *args.names], check=True)


if __name__ == "__main__":
    main()
