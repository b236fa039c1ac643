"""Draws docs/pictures/*.png: needs npm, chromium, and prometheus (`make prometheus`)."""

from __future__ import annotations

import functools
import http.server
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

from deploy.grafana.pictures.record import record, write
from tests.unit.deploy.dashboards import ROOT, committed

HERE = Path(__file__).parent
PICTURES = ROOT / "docs" / "pictures"
WIDTH, ROW, HEAD = 1688, 38, 56
CHROMIUM = (
    "chromium",
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--virtual-time-budget=20000"),
)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def main() -> None:
    """Builds the page, records a live cluster, and takes a picture of each dashboard."""
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=HERE, check=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        site = folder / "site"
        subprocess.run(
            ["npx", "vite", "build", "--emptyOutDir", "--outDir", site, "--logLevel", "error"], cwd=HERE, check=True
        )
        (folder / "live").mkdir()
        write(record(folder / "live"), site)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(site)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            for board in committed():
                _picture(board, server.server_port, folder)
        finally:
            server.shutdown()


def _picture(board: str, port: int, folder: Path) -> None:
    rows = max(panel["gridPos"].get("y", 0) + panel["gridPos"]["h"] for panel in committed()[board]["panels"])
    PICTURES.mkdir(exist_ok=True)
    picture = PICTURES / f"{Path(board).stem}.png"
    profile = folder / "profile"
    command = [
        *CHROMIUM,
        f"--user-data-dir={profile}",
        f"--window-size={WIDTH},{rows * ROW + HEAD}",
        f"--screenshot={picture}",
        f"http://127.0.0.1:{port}/?{board}",
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    shutil.rmtree(profile)
    print(f"drew {picture}")


if __name__ == "__main__":
    main()
