"""Secrets: sources, hiding, and a canary that must turn up nowhere but in the process it is for."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.errors import CannotStart
from runbook.plan import PlanError, load_text
from runbook.secrets import Redactor, fingerprint, resolve
from runbook.service import Service
from tests.support.workspaces import HEAD, cli, make, states

CANARY = "c4n4ry/7+Kw=pelikan"
WITH_SECRET = HEAD.replace("tasks:\n", "secrets: {CANARY: {from: env}}\ntasks:\n")


def test_each_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER", "from-env")
    (tmp_path / "key").write_text("from-file\n")
    assert resolve("X", {"from": "env", "name": "OTHER"}, tmp_path) == "from-env"
    assert resolve("OTHER", {"from": "env"}, tmp_path) == "from-env"
    assert resolve("X", {"from": "file", "path": "key"}, tmp_path) == "from-file"
    command = {"from": "command", "argv": ["sh", "-c", "echo from-command"]}
    assert resolve("X", command, tmp_path) == "from-command"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"from": "env", "name": "NO_SUCH_VARIABLE"}, "environment variable NO_SUCH_VARIABLE"),
        ({"from": "file", "path": "missing"}, "cannot be had"),
        ({"from": "command", "argv": ["false"]}, "the command false"),
        ({"from": "command", "argv": ["/no/such/program"]}, "FileNotFoundError"),
        ({"from": "command", "argv": ["printf", "abc"]}, "too short to be hidden"),
        ({"from": "command", "argv": ["printf", "abcdef\\000gh"]}, "no text of a secret"),
    ],
)
def test_a_secret_that_cannot_be_had_is_named_and_never_told(
    tmp_path: Path, source: dict[str, object], said: str
) -> None:
    with pytest.raises(CannotStart, match=said) as refused:
        resolve("KEY", source, tmp_path)
    assert refused.value.hint
    assert "abc" not in str(refused.value)


def test_a_fingerprint_tells_sameness_and_is_salted() -> None:
    first = fingerprint("value one")
    assert fingerprint("value one", like=first) == first
    assert fingerprint("value two", like=first) != first
    assert fingerprint("value one") != first
    assert "value" not in first


def hiding(*values: str) -> Redactor:
    redactor = Redactor()
    for number, value in enumerate(values):
        redactor.add(f"S{number}", value)
    return redactor


def test_every_form_is_hidden() -> None:
    hide = hiding(CANARY)
    plain = base64.b64encode(CANARY.encode()).decode()
    assert hide.text(f"a {CANARY} b") == "a [S0] b"
    for written in (quote(CANARY, safe=""), plain, json.dumps(CANARY)[1:-1]):
        assert "[S0]" in hide.text(f"x={written}&y"), written
    for lead in ("", "a", "ab", "abc"):
        inside = base64.b64encode(f"{lead}{CANARY}:more".encode()).decode()
        assert "[S0]" in hide.text(inside), lead
    assert hide.value({"k": [CANARY, {CANARY: 1}]}) == {"k": ["[S0]", {"[S0]": 1}]}


def test_the_lines_of_a_key_file_are_hidden_one_by_one() -> None:
    hide = hiding("-----BEGIN KEY-----\nMIIEvQIBADANBgkqh\nQDtr5Yg77uq92zzk\n-----END KEY-----")
    assert "QDtr5Yg" not in hide.text("said: QDtr5Yg77uq92zzk")


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abcdefghijkl",
        "postgres://me:hunter22@db/x",
        "AKIAIOSFODNN7EXAMPLE",
        "hf_abcdefghijklmnopqrstuv",
    ],
)
def test_known_shapes_are_hidden_without_knowing_them(text: str) -> None:
    assert "[hidden]" in Redactor().text(text)


@pytest.mark.parametrize("text", ["http://127.0.0.1:30000/v1 is up", "a@b.c", "12:30:00 x@y"])
def test_what_only_looks_alike_stays(text: str) -> None:
    assert Redactor().text(text) == text


@given(
    before=st.binary(max_size=30),
    after=st.binary(max_size=30),
    cuts=st.lists(st.integers(0, 90), max_size=8),
    value=st.sampled_from(["abcabcabd", CANARY, "aaaaaaaa", "Grüße, geheim"]),
)
def test_a_value_cut_by_chunks_is_hidden_and_no_byte_moves(
    before: bytes, after: bytes, cuts: list[int], value: str
) -> None:
    hide = hiding(value)
    data = before + value.encode() + after
    copied = b""
    for end in [*sorted(min(cut, len(data)) for cut in cuts), len(data), len(data)]:
        if end >= len(copied):
            copied += hide.stream(data[len(copied) : end], final=False)
    copied += hide.stream(data[len(copied) :], final=True)
    assert len(copied) == len(data)
    assert value.encode() not in copied
    kept = [(a, b) for a, b in zip(copied, data, strict=True) if a != b]
    assert {a for a, _ in kept} <= {ord("*")}
    assert copied[: len(before)].rstrip(b"*") == before[: len(copied[: len(before)].rstrip(b"*"))]


def test_a_log_that_ends_inside_a_value_hides_that_end() -> None:
    hide = hiding("abcdefghijkl")
    assert hide.stream(b"x abcdefgh", final=False) == b"x "
    assert hide.stream(b"x abcdefgh", final=True) == b"x ********"
    assert hide.stream(b"data a", final=True) == b"data a"  # one letter is no secret


def test_the_end_of_a_value_that_began_in_a_gap_is_hidden() -> None:
    hide = hiding("abcdefghijkl")
    assert hide.stream(b"efghijkl rest", final=True, after_gap=True) == b"******** rest"
    assert hide.stream(b"kl rest", final=True, after_gap=True) == b"kl rest"
    assert hide.stream(b"efghijkl rest", final=True) == b"efghijkl rest"


@pytest.mark.parametrize(
    ("secrets", "said"),
    [
        ("{KEY: {from: file}}", "`from: file` needs `path`"),
        ("{KEY: {from: env, path: x}}", "`path` does not go with `from: env`"),
        ("{KEY: {from: vault}}", "vault"),
        ("{KEY: {from: env, nam: X}}", "unknown key `nam`"),
        ("{key: {from: env}}", "key"),
        ("{LD_PRELOAD: {from: env}}", "would change what runs"),
    ],
)
def test_wrong_declarations_are_told_with_their_place(secrets: str, said: str) -> None:
    text = HEAD.replace("tasks:\n", f"secrets: {secrets}\ntasks:\n") + TASKS
    with pytest.raises(PlanError) as refused:
        load_text(text.replace("secrets: [CANARY]", ""), path="f.yaml", params={})
    assert said in str(refused.value)
    assert "f.yaml:7:" in str(refused.value)


def test_an_undeclared_secret_is_told_with_a_suggestion() -> None:
    text = WITH_SECRET + TASKS.replace("secrets: [CANARY]", "secrets: [CANARI]")
    with pytest.raises(PlanError, match=r"unknown secret `CANARI`.*did you mean CANARY"):
        load_text(text, path="f.yaml", params={})


SAYS = (
    'printf %s "$CANARY" | sha256sum; echo "out $CANARY"; echo "err $CANARY" >&2; '
    'printf \'{"message": "%s", "done": 1}\\n\' "$CANARY" >> "$RUNBOOK_PROGRESS"; '
    'printf \'{"told": "%s"}\' "$CANARY" > "$RUNBOOK_OUT"; '
)
TASKS = f"""\
  tells:
    title: Tells
    phase: one
    step: shell
    secrets: [CANARY]
    with: {{sh: {json.dumps(SAYS)}}}
    done_when:
      - command: {{argv: [sh, -c, "cat ${{host.root}}/*/jobs/*/out.log"]}}
  fails:
    title: Fails
    phase: one
    step: shell
    secrets: [CANARY]
    with: {{sh: "sleep 0.2; echo \\"no: $CANARY\\" >&2; exit 3"}}
  plain:
    title: Gets none
    phase: one
    step: shell
    with: {{sh: "env | grep -c CANARY || true"}}
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ran")
    with pytest.MonkeyPatch.context() as patch, make(folder, TASKS, head=WITH_SECRET) as service:
        patch.setenv("CANARY", CANARY)
        service.run()
        assert states(service) == {"tells": "done", "fails": "failed", "plain": "done"}
    return folder


def test_the_process_gets_it_and_nothing_else_does(ran: Path) -> None:
    with Service.open(ran) as service:
        told = service.log_path("tells", "out")
        plain = service.log_path("plain", "out")
        assert told is not None
        assert plain is not None
        import hashlib

        assert hashlib.sha256(CANARY.encode()).hexdigest() in told.read_text()
        assert "out ****" in told.read_text()
        assert plain.read_text() == "0\n"  # the operator's environment is not the job's
    answers = "".join(
        cli(ran, *words, CANARY=CANARY).stdout
        for words in (["status", "--json"], ["status", "fails", "--json"], ["brief"], ["results"])
    )
    assert "[CANARY]" in answers
    found = [path for path in files_of(ran) if holds(path.read_bytes())]
    host = ran / ".runbook" / "host"
    # The host's own logs hold what the payload wrote there: that is the payload's doing.
    assert [path for path in found if not path.is_relative_to(host)] == []
    assert {path.name for path in found} <= {"out.log", "err.log", "progress.jsonl", "out.json"}
    assert not holds(answers.encode())


def test_a_pushed_snapshot_holds_names_only(ran: Path, tmp_path: Path) -> None:
    import gzip

    with Service.open(ran) as service:
        from runbook.sharing.place import Place

        service.push(Place(url=str(tmp_path / "s.runbook")))
        secret = service.snapshot().secrets[0]
    data = (tmp_path / "s.runbook").read_bytes()
    unpacked = gzip.decompress(data.split(b"\n", 2)[2])
    assert b"CANARY" in unpacked
    assert not holds(unpacked)
    assert secret.fingerprint
    assert CANARY not in secret.fingerprint


def files_of(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def holds(data: bytes) -> bool:
    texts = [CANARY, quote(CANARY, safe=""), base64.b64encode(CANARY.encode()).decode()]
    return any(text.encode() in data for text in texts)


def test_it_is_in_no_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", CANARY)
    tasks = TASKS.replace("sleep 0.2", f"touch {tmp_path}/up; sleep 1")
    with make(tmp_path / "ws", tasks, head=WITH_SECRET) as service:
        seen: list[bytes] = []

        def look(_event: object) -> None:
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    seen.append(path.read_bytes())
                except OSError:
                    continue

        service.run(only=["fails"], listen=look)
    assert (tmp_path / "up").exists()
    assert seen
    assert not any(holds(line) for line in seen)


def test_a_missing_secret_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CANARY", raising=False)
    said: list[str] = []
    with make(tmp_path, TASKS, head=WITH_SECRET) as service:
        service.run(only=["tells"], listen=lambda event: said.append(str(event)))
        assert states(service)["tells"] == "ready"
        assert service.snapshot().attempts_of("tells") == ()
    assert any("secret CANARY cannot be had" in text for text in said)


def test_a_changed_value_is_noticed(ran: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", "another-value-now")
    said: list[str] = []
    with Service.open(ran) as service:
        service.retry("fails")
        service.run(only=["fails"], listen=lambda event: said.append(str(event)))
    assert any("the secret CANARY is another than last time" in text for text in said)


def test_elsewhere_without_the_value_no_log_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    monkeypatch.setenv("CANARY", CANARY)
    tasks = TASKS.replace("sleep 0.2;", f"echo first; touch {tmp_path}/up; sleep 1.5;")
    with make(tmp_path / "ws", tasks, head=WITH_SECRET) as service:
        left = threading.Event()
        service.run(only=["fails"], stop_event=left, listen=lambda _event: left.set())
        attempt = service.snapshot().attempts_of("fails")[0].id
    monkeypatch.delenv("CANARY")
    with Service.open(tmp_path / "ws") as other:
        other.run(only=["fails"])
        assert states(other)["fails"] == "failed"
        logs = [other.workspace.log(attempt, stream) for stream in ("out", "err")]
        assert not any(holds(path.read_bytes()) for path in logs if path.exists())
        assert not holds((tmp_path / "ws" / ".runbook" / "state.db").read_bytes())


def test_a_crash_report_hides_it(tmp_path: Path) -> None:
    """A bug of ours while a secret is known: the report has the trace and not the value."""
    program = (
        "from pathlib import Path\n"
        "from runbook.secrets import SecretBox\n"
        "from runbook.cli.main import leave\n"
        "import os\n"
        "class S: name='CANARY'; source={'from': 'env'}; fingerprint=None\n"
        "class Snap: secrets=[S]\n"
        "box = SecretBox(Path('.'))\n"
        "box.take(Snap, ['CANARY'])\n"
        "try:\n"
        "    raise ValueError('told ' + os.environ['CANARY'])\n"
        "except ValueError as error:\n"
        "    leave(error)\n"
    )
    done = subprocess.run(
        [os.sys.executable, "-c", program],  # type: ignore[attr-defined]
        env={**os.environ, "CANARY": CANARY, "TMPDIR": str(tmp_path)},
        capture_output=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    reports = list(tmp_path.glob("runbook-bug-*"))
    assert len(reports) == 1, done.stderr
    assert not holds(reports[0].read_bytes() + done.stderr + done.stdout)
    assert b"told [CANARY]" in reports[0].read_bytes()
