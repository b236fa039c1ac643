"""Two network namespaces on a bridge, and a wall of dropped packets between them."""

from __future__ import annotations

import os
import shutil
import subprocess
from types import TracebackType
from typing import Self

TOOLS = ("ip", "nft")


class NoNamespacesError(Exception):
    """This machine can't have them; the message says why."""


class Namespaces:
    """The namespaces `target` and `draft`; this process reaches both, through a bridge.

    Raises:
        NoNamespacesError: on entering, without root, its tools or the kernel's leave.
    """

    def __init__(self) -> None:
        self._tag = f"dp{os.getpid() % 100_000}"
        self._net = f"198.18.{os.getpid() % 256}"

    def address(self, name: str) -> str:
        """Address of a namespace."""
        return f"{self._net}.{['draft', 'target'].index(name) + 2}"

    def inside(self, name: str, command: list[str]) -> list[str]:
        """A command line that runs in a namespace."""
        return ["ip", "netns", "exec", f"{self._tag}-{name}", *command]

    def part(self) -> None:
        """Drops whatever goes between the two, silently, both ways."""
        other = self.address("draft")
        rules = (
            "add table ip wall",
            "add chain ip wall in { type filter hook input priority 0; }",
            "add chain ip wall out { type filter hook output priority 0; }",
            f"add rule ip wall in ip saddr {other} drop",
            f"add rule ip wall out ip daddr {other} drop",
        )
        _run(*self.inside("target", ["nft", "; ".join(rules)]))

    def heal(self) -> None:
        """Lets everything through again."""
        _run(*self.inside("target", ["nft", "delete table ip wall"]))

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            raise NoNamespacesError("network namespaces need root")
        if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
            raise NoNamespacesError(f"no {' and no '.join(missing)} (Debian: iproute2, nftables)")
        try:
            _run("ip", "link", "add", self._tag, "type", "bridge")
            _run("ip", "address", "add", f"{self._net}.1/24", "dev", self._tag)
            _run("ip", "link", "set", self._tag, "up")
            for name in ("draft", "target"):
                self._add(name)
            # a kernel without nf_tables would only say so in the middle of a test
            self.part()
            self.heal()
        except subprocess.CalledProcessError as error:
            self._remove()
            raise NoNamespacesError(f"{' '.join(error.cmd)}: {error.stderr.strip()}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._remove()

    def _add(self, name: str) -> None:
        space, link = f"{self._tag}-{name}", f"{self._tag}{name[0]}"
        _run("ip", "netns", "add", space)
        _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
        _run("ip", "link", "set", link, "master", self._tag, "up")
        _run("ip", "-n", space, "address", "add", f"{self.address(name)}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _run("ip", "-n", space, "link", "set", device, "up")

    def _remove(self) -> None:
        for name in ("draft", "target"):
            subprocess.run(["ip", "netns", "delete", f"{self._tag}-{name}"], capture_output=True)
            subprocess.run(["ip", "link", "delete", f"{self._tag}{name[0]}"], capture_output=True)
        subprocess.run(["ip", "link", "delete", self._tag], capture_output=True)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
