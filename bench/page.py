"""`python -m bench.page [NAME …]`: renews docs/benchmarks.md, tables and figures, from the JSON that benches left here.

A bench with a table has a function `page(found)`, which makes Markdown of what its JSON holds; the table stands between
`<!-- bench: NAME -->` and `<!-- end -->`. What stands between them stays where a bench has left no JSON.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import re
from datetime import date
from pathlib import Path

from bench.plot import PICTURES, ROOT

PAGE = ROOT / "docs" / "benchmarks.md"
_PART = re.compile(r"(<!-- bench: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def renew(text: str, wanted: list[str], folder: Path) -> str:
    """The page with the parts of the benches that have left JSON in `folder`; none wanted: all of them."""

    def part(match: re.Match[str]) -> str:
        name, file = match[2], folder / f"bench-{match[2]}.json"
        if not file.exists() or (wanted and name not in wanted):
            return match[0]
        module, found = importlib.import_module(f"bench.{name.replace('-', '_')}"), json.loads(file.read_text())
        if hasattr(module, "draw"):
            module.draw(found)
        picture = f"![{name}](pictures/bench-{name}.svg)\n\n" if (PICTURES / f"bench-{name}.svg").exists() else ""
        when = date.fromtimestamp(file.stat().st_mtime).isoformat()
        return f"{match[1]}{picture}{module.page(found)}\n\nMeasured {when} on {machine()}.\n\n{match[3]}"

    return _PART.sub(part, text)


def machine() -> str:
    """What it was measured on, in words."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return (
        f"{os.cpu_count()} cores ({models[0] if models else platform.machine()}), CPython {platform.python_version()}"
    )


def main() -> None:
    """Renews the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of benches; none: all that have left their JSON here")
    parser.add_argument("--folder", type=Path, default=Path(), help="where the JSON is")
    args = parser.parse_args()
    PAGE.write_text(renew(PAGE.read_text(), args.names, args.folder))
    print(PAGE)


if __name__ == "__main__":
    main()
