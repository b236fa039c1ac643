"""Addresses, certificate files, tokens, and where plaintext may go."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from draftproof.errors import ConfigError
from draftproof.rpc.security import Address, TlsFiles, channel_credentials, check_token, server_credentials

LOOPBACK = ["127.0.0.1:1", "127.8.9.1:1", "localhost:1", "[::1]:1"]
# What a name resolves to today says nothing about tomorrow, so only localhost counts.
ELSEWHERE = ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.com:1", "localhost.example.com:1", "127.0.0.1.nip.io:1"]


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("127.0.0.1:50051", "127.0.0.1", 50051), ("[::1]:0", "::1", 0), ("a.b-c:65535", "a.b-c", 65535)],
)
def test_addresses(text: str, host: str, port: int) -> None:
    address = Address.parse(text)
    assert address == Address(host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    ["", "localhost", ":1", "::1:5", "[::1]", "h:-1", "h:65536", "h:x", "[h]", "h:", "[]:1", "http://h:1", "h:²"],
)
def test_malformed_addresses(text: str) -> None:
    with pytest.raises(ConfigError, match="listen"):
        Address.parse(text, "listen")


@pytest.mark.parametrize("text", LOOPBACK)
def test_plaintext_on_loopback(text: str) -> None:
    address = Address.parse(text)
    assert server_credentials(address, None, insecure=False) is None
    assert channel_credentials(address, None, insecure=False, token="secret") is None


@pytest.mark.parametrize("text", ELSEWHERE)
def test_plaintext_elsewhere_must_be_asked_for(text: str) -> None:
    address = Address.parse(text)
    with pytest.raises(ConfigError, match="insecure"):
        server_credentials(address, None, insecure=False)
    with pytest.raises(ConfigError, match="insecure"):
        channel_credentials(address, None, insecure=False, token=None)
    assert server_credentials(address, None, insecure=True) is None
    assert channel_credentials(address, None, insecure=True, token=None) is None


@pytest.mark.parametrize("text", ELSEWHERE)
def test_a_token_never_leaves_the_machine_in_plaintext(text: str) -> None:
    with pytest.raises(ConfigError, match="token") as caught:
        channel_credentials(Address.parse(text), None, insecure=True, token="secret")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("token", ["", "a b", "a\n", "γ", " "])
def test_tokens_that_cannot_be_sent(token: str) -> None:
    with pytest.raises(ConfigError, match="token"):
        check_token(token)


@pytest.mark.parametrize("field", ["cert", "key", "ca"])
def test_a_missing_file_is_named(field: str, tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("cert", "key", "ca")}
    for name, path in files.items():
        if name != field:
            path.write_bytes(b"")
    tls = TlsFiles(**files)
    for make in (
        lambda: server_credentials(Address("127.0.0.1", 0), tls, insecure=False),
        lambda: channel_credentials(Address("127.0.0.1", 1), tls, insecure=False, token=None),
    ):
        with pytest.raises(ConfigError, match=rf"tls\.{field}: can't read .*/{field}: No such file") as caught:
            make()
        assert "\n" not in str(caught.value)


def test_files_that_are_no_certificates_are_named(tmp_path: Path) -> None:
    authority, issued = trustme.CA(), trustme.CA().issue_cert("127.0.0.1")
    garbage, ca, cert, other_key = (tmp_path / name for name in ("garbage", "ca", "cert", "key"))
    garbage.write_text("not a certificate")
    authority.cert_pem.write_to_path(str(ca))
    issued.cert_chain_pems[0].write_to_path(str(cert))
    authority.issue_cert("127.0.0.1").private_key_pem.write_to_path(str(other_key))
    for tls, what in (
        (TlsFiles(ca=garbage), "garbage holds no PEM certificate"),
        (TlsFiles(cert=garbage, key=other_key, ca=ca), "garbage and"),
        (TlsFiles(cert=cert, key=other_key, ca=ca), "cert and .*key are no PEM certificate with its"),
    ):
        with pytest.raises(ConfigError, match=what):
            channel_credentials(Address("127.0.0.1", 1), tls, insecure=False, token=None)


def test_a_certificate_without_its_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="go together"):
        TlsFiles(cert=tmp_path / "cert")


def test_a_server_needs_a_certificate(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="certificate"):
        server_credentials(Address("127.0.0.1", 0), TlsFiles(), insecure=False)
