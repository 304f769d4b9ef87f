"""What OpenSSH resolves is what is used, and a key is trusted for one host only."""

from __future__ import annotations

import subprocess
from pathlib import Path

import paramiko
import pytest

from remote import HostKeyChanged, HostKeyUnknown, RemoteError
from remote.ssh_config import Route, parse, resolve, split_hop
from remote.ssh_trust import fingerprint, key_text, trusted_keys, verify, wanted_types


def test_include_match_and_tokens_are_openssh_s_business(tmp_path):
    (tmp_path / "extra").write_text("Host gpu\n  HostName 10.0.0.7\n  Port 2222\n  User ann\n")
    config = tmp_path / "config"
    config.write_text(
        f"Include {tmp_path}/extra\nMatch host 10.0.0.7\n  HostKeyAlias box\n"
        f"Host *\n  ProxyJump none\n  IdentityFile {tmp_path}/key\n"
    )
    route = resolve("gpu", config=config)
    assert (route.host, route.port, route.user) == ("10.0.0.7", 2222, "ann")
    assert route.identity_files == (tmp_path / "key",)
    assert route.jumps == ()
    assert route.proxy_command == ""
    given = resolve("gpu", user="bob", port=22022, config=config)
    assert (given.user, given.port) == ("bob", 22022)


def test_jumps_and_proxy_commands(tmp_path):
    config = tmp_path / "config"
    config.write_text(
        "Host a\n  ProxyJump u@j1:2201,[::1]:2202\n"
        "Host b\n  User bob\n  Port 9\n  ProxyCommand relay %h %p %r 100%%\n"
    )
    assert resolve("a", config=config).jumps == ("u@j1:2201", "[::1]:2202")
    assert resolve("b", config=config).proxy_command == "relay b 9 bob 100%"


@pytest.mark.parametrize(
    ("hop", "parts"),
    [
        ("box", ("", "box", None)),
        ("u@box:22", ("u", "box", 22)),
        ("u@[fe80::1]:2222", ("u", "fe80::1", 2222)),
        ("[::1]", ("", "::1", None)),
        ("fe80::1", ("", "fe80::1", None)),
        ("ssh://u@box:7/", ("u", "box", 7)),
        ("a@b@box", ("a@b", "box", None)),
    ],
)
def test_one_jump_host(hop, parts):
    assert split_hop(hop) == parts


@pytest.mark.parametrize("address", ["-oProxyCommand=sh", "a b", "", "a;b", "a\nb"])
def test_an_address_cannot_be_an_option(address):
    with pytest.raises(RemoteError, match="is not a host"):
        resolve(address)


def test_a_broken_configuration_is_named(tmp_path):
    (tmp_path / "config").write_text("NoSuchKeyword yes\n")
    with pytest.raises(RemoteError, match=r"(?i)nosuchkeyword"):
        resolve("a", config=tmp_path / "config")


def test_without_the_program_the_record_must_do(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    route = resolve("10.0.0.7", user="ann", port=2222)
    assert (route.host, route.port, route.user) == ("10.0.0.7", 2222, "ann")
    assert "no ssh program" in route.source


def test_values_named_none_are_none():
    route = parse("hostname h\nport 22\nuser u\nproxyjump none\nproxycommand none\n")
    assert route == Route(host="h", port=22, user="u")


def test_a_pinned_key_outweighs_known_hosts(tmp_path):
    ours, other = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
    known = tmp_path / "known_hosts"
    known.write_text(f"[h]:2222 {key_text(other)}\n|1|bad line\n")
    route = Route(host="h", port=2222, user="u", known_hosts=(known, tmp_path / "absent"))
    verify("h", other, trusted_keys(route, None))
    pinned = trusted_keys(route, key_text(ours) + " a comment")
    verify("h", ours, pinned)
    with pytest.raises(HostKeyChanged) as changed:
        verify("h", other, pinned)
    assert changed.value.expected == key_text(ours)
    assert changed.value.fingerprint in str(changed.value)
    elsewhere = Route(host="h", port=22, user="u", known_hosts=(known,))
    with pytest.raises(HostKeyUnknown) as unknown:
        verify("h", other, trusted_keys(elsewhere, None))
    assert unknown.value.key == key_text(other)
    assert unknown.value.fingerprint == fingerprint(key_text(other))
    with pytest.raises(RemoteError, match="TYPE BASE64"):
        trusted_keys(route, "nonsense")


def test_the_key_type_we_can_compare_is_asked_for_first():
    offered = ("ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512", "rsa-sha2-256")
    assert wanted_types(("ssh-rsa AAAA",), offered)[:2] == ("rsa-sha2-512", "rsa-sha2-256")
    assert wanted_types((), offered) == offered
    assert set(wanted_types(("ssh-rsa AAAA",), offered)) == set(offered)


def test_fingerprints_are_those_of_ssh_keygen(tmp_path):
    key = paramiko.ECDSAKey.generate()
    path = Path(tmp_path / "key.pub")
    path.write_text(key_text(key) + "\n")
    shown = subprocess.run(
        ["ssh-keygen", "-l", "-f", str(path)], capture_output=True, text=True, check=True
    )
    assert fingerprint(key_text(key)) in shown.stdout
