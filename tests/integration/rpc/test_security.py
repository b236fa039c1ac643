"""TLS, mutual TLS and the bearer token, with certificates made for the occasion."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from draftproof.errors import UnauthenticatedError, UnavailableError
from draftproof.rpc.channel import aio_channel
from draftproof.rpc.security import TlsFiles
from draftproof.rpc.status import from_rpc_error


class Authority:
    """A certificate authority and files made by it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._ca = trustme.CA()
        self.ca = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.ca))

    def issue(self, name: str) -> tuple[Path, Path]:
        cert, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        issued = self._ca.issue_cert("127.0.0.1", "localhost")
        issued.private_key_pem.write_to_path(str(key))
        cert.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
        return cert, key


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "strangers")


@pytest.fixture(scope="module")
def server_tls(ours: Authority) -> TlsFiles:
    cert, key = ours.issue("server")
    return TlsFiles(cert=cert, key=key)


@pytest.fixture(scope="module")
def mutual_tls(ours: Authority, server_tls: TlsFiles) -> TlsFiles:
    return TlsFiles(cert=server_tls.cert, key=server_tls.key, ca=ours.ca)


async def refused(awaitable) -> Exception:
    with pytest.raises(grpc.RpcError) as caught:
        await awaitable
    return from_rpc_error(caught.value)


async def test_tls(kind, serve, invoke, ours, server_tls):
    async with serve(tls=server_tls) as (server, _):
        assert await invoke(server.address, kind, b"x", tls=TlsFiles(ca=ours.ca)) != []


async def test_tls_by_name(serve, invoke, ours, server_tls):
    async with serve("localhost:0", tls=server_tls) as (server, _):
        assert await invoke(server.address, "UnaryUnary", b"x", tls=TlsFiles(ca=ours.ca)) == [b"x"]


async def test_a_server_of_another_authority(serve, invoke, strangers, server_tls):
    async with serve(tls=server_tls) as (server, _):
        error = await refused(invoke(server.address, "UnaryUnary", b"x", tls=TlsFiles(ca=strangers.ca)))
        assert type(error) is UnavailableError
        assert "tls.ca" in error.message


async def test_public_authorities_are_the_default(serve, invoke, server_tls):
    async with serve(tls=server_tls) as (server, _):
        error = await refused(invoke(server.address, "UnaryUnary", b"x", tls=TlsFiles()))
        assert type(error) is UnavailableError


async def test_plaintext_to_a_tls_server(serve, invoke, ours, server_tls):
    async with serve(tls=server_tls) as (server, script):
        assert type(await refused(invoke(server.address, "UnaryUnary", b"sleep 0"))) is UnavailableError
        assert script.freed == []
        assert await invoke(server.address, "UnaryUnary", b"x", tls=TlsFiles(ca=ours.ca)) == [b"x"]


async def test_tls_to_a_plaintext_server(serve, invoke, ours):
    async with serve() as (server, script):
        error = await refused(invoke(server.address, "UnaryUnary", b"sleep 0", tls=TlsFiles(ca=ours.ca)))
        assert type(error) is UnavailableError
        assert "speaks plaintext" in error.message
        assert script.freed == []


async def test_mutual_tls(kind, serve, invoke, ours, mutual_tls):
    cert, key = ours.issue("client")
    async with serve(tls=mutual_tls) as (server, _):
        assert await invoke(server.address, kind, b"x", tls=TlsFiles(cert=cert, key=key, ca=ours.ca)) != []


async def test_mutual_tls_without_a_client_certificate(serve, invoke, ours, mutual_tls):
    async with serve(tls=mutual_tls) as (server, script):
        error = await refused(invoke(server.address, "UnaryUnary", b"sleep 0", tls=TlsFiles(ca=ours.ca)))
        assert type(error) is UnavailableError
        assert script.freed == []


async def test_mutual_tls_with_a_strangers_certificate(serve, invoke, ours, strangers, mutual_tls):
    cert, key = strangers.issue("client")
    async with serve(tls=mutual_tls) as (server, script):
        tls = TlsFiles(cert=cert, key=key, ca=ours.ca)
        assert type(await refused(invoke(server.address, "UnaryUnary", b"sleep 0", tls=tls))) is UnavailableError
        assert script.freed == []


async def test_the_right_token(kind, serve, invoke):
    async with serve(token="s3cret") as (server, _):
        assert await invoke(server.address, kind, b"x", token="s3cret") != []


async def test_the_right_token_over_tls(kind, serve, invoke, ours, server_tls):
    async with serve(tls=server_tls, token="s3cret") as (server, _):
        assert await invoke(server.address, kind, b"x", tls=TlsFiles(ca=ours.ca), token="s3cret") != []


@pytest.mark.parametrize("token", [None, "s3cre", "s3cret2", "S3CRET", "Bearer"])
async def test_a_missing_or_wrong_token(token, kind, serve, invoke):
    async with serve(token="s3cret") as (server, script):
        error = await refused(invoke(server.address, kind, b"sleep 0", token=token))
        assert type(error) is UnauthenticatedError
        assert "s3cret" not in error.message
        assert script.freed == []


@pytest.mark.parametrize(
    "metadata",
    [
        [("authorization", "s3cret")],
        [("authorization", "bearer s3cret")],
        [("authorization", "Basic s3cret")],
        [("authorization", "Bearer s3cret"), ("authorization", "Bearer wrong")],
        [("authorization-bin", b"Bearer s3cret")],
    ],
)
async def test_other_forms_of_authorization(metadata, serve):
    async with serve(token="s3cret") as (server, _), aio_channel(str(server.address)) as channel:
        error = await refused(channel.unary_unary("/draftproof.test.Script/UnaryUnary")(b"x", metadata=metadata))
        assert type(error) is UnauthenticatedError


async def test_health_asks_for_no_token_and_reflection_does(serve):
    async with serve(token="s3cret") as (server, _), aio_channel(str(server.address)) as channel:
        reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        stream = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        assert type(await refused(stream.read())) is UnauthenticatedError
