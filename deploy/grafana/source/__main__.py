"""Writes the dashboards' JSON and the alert rules."""

from __future__ import annotations

from deploy.grafana.source.build import rendered


def main() -> None:
    """Writes every file."""
    for path, text in rendered().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        print(f"wrote {path}")


main()
