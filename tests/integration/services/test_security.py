"""TLS, mutual TLS and bearer tokens on every link, with certificates made here."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from draft_service.app import TargetAddress
from draftproof.client import NO_RETRIES
from draftproof.errors import ConfigError, RequestError, UnauthenticatedError, UnavailableError
from draftproof.rpc.security import TlsFiles
from draftproof.serving.options import ListenConfig
from tests.integration.services.authority import Authority
from tests.integration.services.harness import Kit, Options, Stack, fingerprint, raw_draft, until

OPTIONS: dict[str, Any] = {"max_tokens": 5, "ignore_eos": True}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "theirs")


async def check_works(kit: Kit, stack: Stack, **draft_client: Any) -> None:
    client = kit.client(stack.draft.address, retries=NO_RETRIES, **draft_client)
    assert len((await client.generate("hello", **OPTIONS)).tokens) == 5


async def check_refused(kit: Kit, address: str, kind: type[RequestError], **client_options: Any) -> None:
    client = kit.client(address, retries=NO_RETRIES, **client_options)
    with pytest.raises(kind):
        await client.generate("hello", timeout=5.0, **OPTIONS)


async def test_tls_on_every_link(kit: Kit, authority: Authority, stranger: Authority) -> None:
    listen = ListenConfig(tls=authority.files("server", ca=False))
    stack = await kit.stack(
        target_listen=listen,
        draft_listen=listen,
        dial=lambda address: TargetAddress(address=address, tls=authority.trust),
    )
    await check_works(kit, stack, tls=authority.trust)
    direct = kit.client(stack.target.address, tls=authority.trust)
    assert len((await direct.generate("hello", **OPTIONS)).tokens) == 5
    for address in (stack.draft.address, stack.target.address):
        await check_refused(kit, address, UnavailableError)
        await check_refused(kit, address, UnavailableError, tls=stranger.trust)


async def test_mutual_tls_on_every_link(kit: Kit, authority: Authority, stranger: Authority) -> None:
    listen = ListenConfig(tls=authority.files("server"))
    ours = authority.files("client")
    stack = await kit.stack(
        target_listen=listen, draft_listen=listen, dial=lambda address: TargetAddress(address=address, tls=ours)
    )
    await check_works(kit, stack, tls=ours)
    theirs = stranger.files("client")
    wrong = TlsFiles(cert=theirs.cert, key=theirs.key, ca=authority.ca)
    for address in (stack.draft.address, stack.target.address):
        await check_refused(kit, address, UnavailableError, tls=authority.trust)
        await check_refused(kit, address, UnavailableError, tls=wrong)


@pytest.mark.parametrize(
    "dial",
    [
        lambda address, ours, theirs: TargetAddress(address=address),
        lambda address, ours, theirs: TargetAddress(address=address, tls=theirs.trust),
        lambda address, ours, theirs: TargetAddress(address=address, tls=ours.trust),
    ],
    ids=["plaintext", "another authority", "no certificate of its own"],
)
async def test_a_draft_that_can_t_show_itself_never_gets_ready(
    kit: Kit, authority: Authority, stranger: Authority, dial: Any
) -> None:
    stack = await kit.stack(
        ready=False,
        target_listen=ListenConfig(tls=authority.files("server")),
        dial=lambda address: dial(address, authority, stranger),
    )
    client = kit.client(stack.draft.address, retries=NO_RETRIES)
    link = stack.draft.app._link  # type: ignore[union-attr]
    await until(lambda: link._problem != "not connected yet")
    with pytest.raises(UnavailableError, match="can't be reached"):
        await client.generate("hello", timeout=5.0)
    assert not stack.draft.serving


async def test_bearer_tokens_at_both_doors(kit: Kit) -> None:
    stack = await kit.stack(
        target_listen=ListenConfig(token="target-secret"),
        draft_listen=ListenConfig(token="front-door"),
        dial=lambda address: TargetAddress(address=address, token="target-secret"),
    )
    await check_works(kit, stack, token="front-door")
    assert len((await kit.client(stack.target.address, token="target-secret").generate("hi", **OPTIONS)).tokens) == 5
    for address, wrong in ((stack.draft.address, "target-secret"), (stack.target.address, "front-door")):
        await check_refused(kit, address, UnauthenticatedError)
        await check_refused(kit, address, UnauthenticatedError, token=wrong)
    async with raw_draft(stack.target.address, token="target-secret") as draft:
        assert draft.welcome.fingerprint.tokenizer_sha256 == fingerprint().tokenizer_sha256


async def test_a_draft_with_the_wrong_token_says_so(kit: Kit) -> None:
    stack = await kit.stack(ready=False, target_listen=ListenConfig(token="target-secret"))
    client = kit.client(stack.draft.address, retries=NO_RETRIES)
    link = stack.draft.app._link  # type: ignore[union-attr]
    await until(lambda: link._problem != "not connected yet")
    with pytest.raises(UnavailableError, match="bearer token"):
        await client.generate("hello", timeout=5.0)


async def test_plaintext_stays_on_loopback(kit: Kit) -> None:
    with pytest.raises(ConfigError, match="not a loopback address"):
        await kit.target(Options(target_listen=ListenConfig(host="0.0.0.0")))
    with pytest.raises(ConfigError, match="not a loopback address"):
        await kit.draft(Options(draft_listen=ListenConfig(host="0.0.0.0")), "127.0.0.1:1")
    with pytest.raises(ConfigError, match="not a loopback address"):
        await kit.draft(Options(), "192.0.2.1:7600")
    options = Options(dial=lambda address: TargetAddress(address=address, token="x", insecure=True))
    with pytest.raises(ConfigError, match="never sent in plaintext"):
        await kit.draft(options, "192.0.2.1:7600")
    target = await kit.target(Options(target_listen=ListenConfig(host="0.0.0.0", insecure=True)))
    async with raw_draft(f"127.0.0.1:{target.port}") as draft:
        assert draft.welcome.max_gamma == 16


async def command(address: str, *arguments: str) -> tuple[int | None, str, str]:
    """Exit code, output and error lines of `draftproof generate`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "draftproof.cli.main", "generate", "hello", "--plain", "--address", address),
        *("--max-tokens", "5", "--ignore-eos", "--temperature", "0", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_the_command_line_over_tls_with_a_token(kit: Kit, authority: Authority) -> None:
    listen = ListenConfig(tls=authority.files("server", ca=False), token="our-secret")
    stack = await kit.stack(
        target_listen=listen,
        draft_listen=listen,
        dial=lambda address: TargetAddress(address=address, tls=authority.trust, token="our-secret"),
    )
    trust = ("--tls-ca", str(authority.ca))
    right, wrong, plaintext = await asyncio.gather(
        command(stack.draft.address, *trust, "--token", "our-secret"),
        command(stack.draft.address, *trust, "--token", "another"),
        command(stack.draft.address, "--token", "our-secret", "--timeout", "5"),
    )
    assert right[0] == 0, right
    assert len(right[1].strip()) == 5
    for (code, out, err), said in ((wrong, "token"), (plaintext, "TLS")):
        assert (code, out.strip()) == (1, "")
        # where it was worth waiting, a line before these says so
        first, hint = err.strip().splitlines()[-2:]
        assert first.startswith("error: ")
        assert said in first
        assert hint.startswith("   ")
