"""Certificates made for a test."""

from __future__ import annotations

from pathlib import Path

import trustme

from draftproof.rpc.security import TlsFiles


class Authority:
    """A certificate authority and files of certificates that it signs."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._ca = trustme.CA()
        self.ca = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(self.ca)

    def files(self, name: str, ca: bool = True) -> TlsFiles:
        issued = self._ca.issue_cert("127.0.0.1", "localhost")
        cert, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        issued.cert_chain_pems[0].write_to_path(cert)
        issued.private_key_pem.write_to_path(key)
        return TlsFiles(cert=cert, key=key, ca=self.ca if ca else None)

    @property
    def trust(self) -> TlsFiles:
        return TlsFiles(ca=self.ca)
