"""TLS from files, and the rule that plaintext stays on this machine unless asked for."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from draftproof.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files of one side.

    Attributes:
        cert: certificate chain this side shows. A server needs one; a channel shows one for mutual TLS.
        key: private key of `cert`.
        ca: authority that the peer's certificate must come from. On a server it makes client certificates mandatory
            (mutual TLS); on a channel, None means the public authorities.
    """

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ConfigError("tls", "cert and key go together; give both or neither")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens: "host:port", "[v6]:port"."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, field: str = "address") -> Address:
        """Splits "host:port"; port 0 is any free one.

        Raises:
            ConfigError: names `field`.
        """
        host, separator, port = text.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        host = host[1:-1] if bracketed else host
        if not separator or not host or (":" in host) != bracketed or not port.isdecimal() or int(port) > 65535:
            raise ConfigError(field, f"must look like host:port or [v6]:port, got {text!r}")
        return cls(host, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether what is sent there stays on this machine. Names other than localhost are not looked up."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def server_credentials(address: Address, tls: TlsFiles | None, insecure: bool) -> grpc.ServerCredentials | None:
    """Credentials to listen with; None means plaintext.

    Raises:
        ConfigError: a file can't be read or used, or plaintext would leave this machine.
    """
    if tls is None:
        _allow_plaintext(address, insecure)
        return None
    ca, key, cert = _read(tls)
    if key is None or cert is None:
        raise ConfigError("tls", "a server needs a certificate and its key")
    return grpc.ssl_server_credentials([(key, cert)], root_certificates=ca, require_client_auth=ca is not None)


def channel_credentials(
    address: Address, tls: TlsFiles | None, insecure: bool, token: str | None
) -> grpc.ChannelCredentials | None:
    """Credentials to dial with, without the token; None means plaintext.

    Raises:
        ConfigError: a file can't be read or used, the token is malformed, or plaintext would leave this machine.
    """
    if token is not None:
        check_token(token)
    if tls is None:
        _allow_plaintext(address, insecure)
        if token is not None and not address.is_loopback:
            raise ConfigError("token", f"a bearer token is never sent in plaintext to {address}; use TLS")
        return None
    return grpc.ssl_channel_credentials(*_read(tls))


def check_token(token: str) -> None:
    """Refuses a bearer token that can't be sent.

    Raises:
        ConfigError: it is empty, or holds blanks or characters beyond ASCII.
    """
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError("token", "must be non-empty printable ASCII without blanks")


def _allow_plaintext(address: Address, insecure: bool) -> None:
    if not insecure and not address.is_loopback:
        raise ConfigError(
            "tls",
            f"{address} is not a loopback address and would be served or dialled in plaintext; give TLS files, or set"
            " insecure if the network is trusted",
        )


def _read(tls: TlsFiles) -> tuple[bytes | None, bytes | None, bytes | None]:
    """Contents of ca, key and cert. gRPC would notice what is wrong with them only at the first handshake."""
    contents = []
    for field, path in (("tls.ca", tls.ca), ("tls.key", tls.key), ("tls.cert", tls.cert)):
        try:
            contents.append(None if path is None else path.read_bytes())
        except OSError as error:
            raise ConfigError(field, f"can't read {path}: {error.strerror}") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if tls.ca is not None:
            context.load_verify_locations(tls.ca)
    except ssl.SSLError as error:
        raise ConfigError("tls.ca", f"{tls.ca} holds no PEM certificate") from error
    try:
        if tls.cert is not None:
            # Without a password function OpenSSL would ask on the terminal.
            context.load_cert_chain(tls.cert, tls.key, password=lambda: b"")
    except ssl.SSLError as error:
        raise ConfigError(
            "tls.cert", f"{tls.cert} and {tls.key} are no PEM certificate with its unencrypted key"
        ) from error
    ca, key, cert = contents
    return ca, key, cert
