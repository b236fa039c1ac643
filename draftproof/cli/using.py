"""Commands that use a server: their options."""

from __future__ import annotations

from typing import Annotated

import typer

from draftproof.cli import options
from draftproof.errors import InvalidArgumentError

DEFAULT_ADDRESS = "127.0.0.1:7500"

Plain = Annotated[bool, typer.Option("--plain", envvar="DRAFTPROOF_PLAIN", help="Text alone, no colours, no legend.")]
System = Annotated[str | None, typer.Option(envvar="DRAFTPROOF_SYSTEM", help="System message.")]


def generate(
    prompt: Annotated[str, typer.Argument(help="Text to continue; - reads it from standard input.")],
    chat: Annotated[
        bool, typer.Option("--chat", envvar="DRAFTPROOF_CHAT", help="Answer the text, by the model's chat template.")
    ] = False,
    system: System = None,
    plain: Plain = False,
    as_json: Annotated[
        bool, typer.Option("--json", envvar="DRAFTPROOF_JSON", help="One JSON object when complete.")
    ] = False,
    trace: Annotated[
        str | None,
        typer.Option(
            envvar="DRAFTPROOF_TRACE", help="p, q, u and verdict per position, for --json: N largest masses, or full."
        ),
    ] = None,
    logprobs: Annotated[
        int | None,
        typer.Option(envvar="DRAFTPROOF_LOGPROBS", help="Log-probabilities and N alternatives, for --json."),
    ] = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = None,
    presence_penalty: options.PresencePenalty = None,
    frequency_penalty: options.FrequencyPenalty = None,
    logit_bias: options.LogitBias = None,
    seed: options.Seed = None,
    gamma: options.Gamma = None,
    rule: options.RuleOption = None,
    lenience: options.Lenience = None,
    max_tokens: options.MaxTokens = None,
    stop: options.Stop = None,
    stop_token_ids: options.StopTokenIds = None,
    ignore_eos: options.IgnoreEos = False,
    address: options.Address = DEFAULT_ADDRESS,
    tls: options.Tls = False,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    token: options.Token = None,
    insecure: options.Insecure = False,
    timeout: options.Timeout = 600.0,
) -> None:
    """Continue a text. Tokens are coloured by where they came from; the text goes to stdout, all else to stderr."""
    from draftproof.cli import generate as command

    command.run(
        options.Connection(
            address=address,
            tls=tls,
            tls_ca=tls_ca,
            tls_cert=tls_cert,
            tls_key=tls_key,
            token=token,
            insecure=insecure,
            timeout=timeout,
        ),
        prompt,
        chat=chat,
        system=system,
        sampling=options.sampling_fields(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            logit_bias=logit_bias,
            seed=seed,
            gamma=gamma,
            rule=rule,
            lenience=lenience,
            max_tokens=max_tokens,
            stop=stop,
            stop_token_ids=stop_token_ids,
            ignore_eos=ignore_eos,
            logprobs=logprobs,
        ),
        trace=_trace(trace),
        plain=plain,
        as_json=as_json,
    )


def chat(
    system: System = None,
    plain: Plain = False,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = None,
    seed: options.Seed = None,
    gamma: options.Gamma = None,
    rule: options.RuleOption = None,
    lenience: options.Lenience = None,
    max_tokens: options.MaxTokens = 512,
    address: options.Address = DEFAULT_ADDRESS,
    tls: options.Tls = False,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    token: options.Token = None,
    insecure: options.Insecure = False,
    timeout: options.Timeout = 600.0,
) -> None:
    """Talk to the model. Ctrl-C stops an answer, Ctrl-D leaves."""
    from draftproof.cli import chat as command

    connection = options.Connection(
        address=address,
        tls=tls,
        tls_ca=tls_ca,
        tls_cert=tls_cert,
        tls_key=tls_key,
        token=token,
        insecure=insecure,
        timeout=timeout,
    )
    sampling = options.sampling_fields(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        gamma=gamma,
        rule=rule,
        lenience=lenience,
        max_tokens=max_tokens,
    )
    command.run(connection, system=system, sampling=sampling, plain=plain)


def doctor(
    model: Annotated[
        str | None,
        typer.Option(envvar="DRAFTPROOF_TARGET_MODEL", help="With --draft-model: compare two models' tokenizers."),
    ] = None,
    draft_model: Annotated[str | None, typer.Option(envvar="DRAFTPROOF_DRAFT_MODEL", help="See --model.")] = None,
    address: options.Address = DEFAULT_ADDRESS,
    tls: options.Tls = False,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    token: options.Token = None,
    insecure: options.Insecure = False,
    timeout: options.Timeout = 600.0,
) -> None:
    """Check models, fingerprints, ports and message limits, and say what to mend. Exit code 1 where something fails."""
    from draftproof.cli import doctor as command

    connection = options.Connection(
        address=address,
        tls=tls,
        tls_ca=tls_ca,
        tls_cert=tls_cert,
        tls_key=tls_key,
        token=token,
        insecure=insecure,
        timeout=timeout,
    )
    command.run(connection, model=model, draft_model=draft_model)


def _trace(text: str | None) -> int | str | None:
    if text is None or text == "full":
        return text
    try:
        return int(text)
    except ValueError:
        raise InvalidArgumentError.of("trace", "an integer >= 1 or full", text) from None
