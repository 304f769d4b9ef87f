"""A key that the host record names: judged as ssh judges it, tried first, told when of no use."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from remote import AuthRefused, HostTarget
from remote.identity_file import NoPrivateKey, require_private_key
from remote.openssh import command
from remote.ssh import SshTransport
from remote.ssh_config import chain
from tests.support.nobody import nobody
from tests.support.sshd import make_key


@pytest.fixture
def keyless(tmp_path) -> Path:
    """A configuration by which nobody is let in."""
    path = tmp_path / "config"
    path.write_text("IdentityFile none\n")
    return path


def target(sshd, key: Path | str) -> HostTarget:
    return HostTarget(
        kind="ssh", address="127.0.0.1", user=sshd.user, port=sshd.port, root="/nowhere",
        host_key=sshd.host_key, identity_file=str(key),
    )  # fmt: skip


def test_the_named_key_lets_us_in_where_the_configuration_names_none(sshd, keyless):
    without = SshTransport(target(sshd, ""), config=keyless)
    with pytest.raises(AuthRefused, match="none found"):
        without.run(["true"], timeout=30)
    key = sshd.folder / "client_key"
    made = SshTransport(target(sshd, key), config=keyless)
    assert made.run(["true"], timeout=30).ok
    assert made.bulk().run(["true"], timeout=30).ok
    assert f"with {key} (by ssh -G)" in made.way
    made.close()


def test_it_is_tried_before_those_of_the_configuration(sshd, tmp_path):
    config = tmp_path / "config"
    config.write_text(f"IdentityFile {sshd.folder}/client_key\n")
    make_key(tmp_path / "stranger")
    (route,) = chain("127.0.0.1", identity=tmp_path / "stranger", config=config)
    assert route.identity_files == (tmp_path / "stranger", sshd.folder / "client_key")
    made = SshTransport(target(sshd, tmp_path / "stranger"), config=config)
    assert made.run(["true"], timeout=30).ok, "as ssh does, the next one is tried"
    made.close()


def test_it_is_not_shown_to_jump_hosts(tmp_path):
    config = tmp_path / "config"
    config.write_text("Host far\n  ProxyJump near\n")
    make_key(tmp_path / "key")
    near, far = chain("far", identity=tmp_path / "key", config=config)
    assert (near.named, far.named) == (None, tmp_path / "key")
    assert tmp_path / "key" not in near.identity_files
    assert tmp_path / "key" in far.identity_files


def test_it_is_used_without_an_ssh_program_too(sshd, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    made = SshTransport(target(sshd, sshd.folder / "client_key"))
    assert made.run(["true"], timeout=30).ok
    made.close()


def test_a_home_is_that_of_who_uses_it(sshd, keyless, monkeypatch):
    monkeypatch.setenv("HOME", str(sshd.folder))
    made = SshTransport(target(sshd, "~/client_key"), config=keyless)
    assert made.run(["true"], timeout=30).ok
    argv = command(target(sshd, "~/client_key"), known_hosts=keyless.parent / "known")
    assert argv[argv.index("-i") + 1] == str(sshd.folder / "client_key")
    made.close()


@pytest.mark.parametrize("fault", ["gone", "open to others"])
def test_what_became_of_it_since_is_told_by_every_way_there(sshd, keyless, tmp_path, fault):
    key = tmp_path / "key"
    if fault != "gone":
        make_key(key)
        key.chmod(0o644)
    said = "There is no key file" if fault == "gone" else r"open to others \(mode 0644\)"
    made = SshTransport(target(sshd, key), config=keyless)
    with pytest.raises(AuthRefused, match=said):
        made.run(["true"], timeout=30)
    made.close()
    with pytest.raises(NoPrivateKey, match=said):
        command(target(sshd, key), known_hosts=tmp_path / "known")


def wrong_forms(folder: Path) -> dict[str, tuple[Path, str, str]]:
    """Name -> file, what is said of it, and of what to do."""
    public = make_key(folder / "id")
    (folder / "alone.pub").write_text(public + "\n")
    (folder / "putty.ppk").write_text("PuTTY-User-Key-File-3: ssh-ed25519\n")
    (folder / "text").write_text("hello\n")
    (folder / "bytes").write_bytes(bytes(range(256)))
    (folder / "empty").touch()
    os.mkfifo(folder / "pipe")
    ssh2 = subprocess.check_output(["ssh-keygen", "-e", "-f", folder / "id.pub"])
    (folder / "ssh2").write_bytes(ssh2)
    for path in folder.iterdir():
        path.chmod(0o600)
    return {
        "public": (folder / "id.pub", "is a public key", f"name {folder}/id:"),
        "alone": (folder / "alone.pub", "is a public key", "name the private one"),
        "ssh2": (folder / "ssh2", "is a public key", "name the private one"),
        "putty": (folder / "putty.ppk", "PuTTY", "puttygen"),
        "text": (folder / "text", "no private key", "ssh -i"),
        "bytes": (folder / "bytes", "no private key", "ssh -i"),
        "empty": (folder / "empty", "no private key", "ssh -i"),
        "pipe": (folder / "pipe", "is no file", "private key"),
        "folder": (folder, "is no file", "private key"),
        "missing": (folder / "none", "There is no key file", "~/.ssh/id_ed25519"),
        "percent": (folder / "a%h", "has a `%`", "another name"),
    }


def test_what_is_no_private_key_is_named_with_what_to_do(tmp_path):
    for path, said, hint in wrong_forms(tmp_path).values():
        with pytest.raises(NoPrivateKey) as refused:
            require_private_key(path)
        assert said in refused.value.message, path
        assert str(path) in refused.value.message
        assert hint in refused.value.hint


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
@pytest.mark.parametrize("passphrase", ["", "secret"])
def test_a_private_key_is_taken_locked_or_not(tmp_path, kind, passphrase):
    make_key(tmp_path / "key", kind, passphrase)
    require_private_key(tmp_path / "key")
    subprocess.run(
        ["ssh-keygen", "-q", "-p", "-m", "PEM", "-P", passphrase, "-N", "", "-f",
         tmp_path / "key"],
        check=True,
    )  # fmt: skip
    require_private_key(tmp_path / "key")


def test_a_key_that_may_not_be_read():
    with tempfile.TemporaryDirectory() as name:  # not tmp_path: nobody else gets in there
        key = Path(name) / "key"
        make_key(key)
        Path(name).chmod(0o755)
        key.chmod(0)
        with nobody(), pytest.raises(NoPrivateKey, match=r"Cannot read .*: Permission denied"):
            require_private_key(key)
