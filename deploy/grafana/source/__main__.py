"""Writes the dashboards' JSON."""

from __future__ import annotations

from deploy.grafana.source.build import FOLDER, rendered


def main() -> None:
    """Writes one file per dashboard."""
    for name, text in rendered().items():
        (FOLDER / name).write_text(text)
        print(f"wrote {FOLDER / name}")


main()
