"""The bundled runbooks are valid; the repository's PROGRESS.md is one of them, freshly rendered."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from runbook.cli.setup import bundled
from runbook.plan import load_text
from runbook.plan.parameters import parameters
from tests.support.workspaces import cli

REPOSITORY = Path(__file__).parent.parent.parent


def given(name: str) -> tuple[str, ...]:
    """What its operator has to say: the store, which nobody else can know."""
    return () if name == "demo" else ("-p", f"store=s3://your-bucket/{name}")


@pytest.mark.parametrize("name", [name for name in bundled() if name != "demo"])
def test_each_asks_for_the_store_and_keeps_it(tmp_path: Path, name: str) -> None:
    words = ("init", name, "--dir", str(tmp_path / "ws"))
    refused = cli(tmp_path, *words)
    assert refused.returncode == 2
    assert "give it: -p store=s3://BUCKET/FOLDER (The bucket and folder" in refused.stderr
    assert "Repeat the command with -p store=s3://BUCKET/FOLDER" in refused.stderr
    assert not (tmp_path / "ws").exists()
    made = cli(tmp_path, *words, *given(name))
    assert made.returncode == 0, made.stderr
    for role in re.findall(r"host bind (\S+) ", made.stdout):
        assert f"host bind {role} USER@ADDRESS" in made.stdout, "rented, or with GPUs"
    again = cli(tmp_path / "ws", "init")
    assert again.returncode == 0, again.stderr
    valid = cli(tmp_path / "ws", "validate")
    assert valid.returncode == 0, valid.stderr


def test_there_is_one_for_a_trial_and_two_for_the_real_thing() -> None:
    assert {"demo", "qwen3-8b-dflash", "qwen3.6-27b-dflash"} <= set(bundled())


@pytest.mark.parametrize("name", bundled())
def test_each_makes_a_workspace(tmp_path: Path, name: str) -> None:
    made = cli(tmp_path, "init", name, *given(name), "--dir", str(tmp_path / "ws"))
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "ws" / "PROGRESS.md").exists()


@pytest.mark.parametrize("name", [name for name in bundled() if name != "demo"])
def test_each_tells_every_command_before_anything_is_rented(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "ws"
    cli(tmp_path, "init", name, *given(name), "--dir", str(folder))
    told = cli(folder, "run", "--dry-run", "--json")
    would = json.loads(told.stdout)["data"]["would"]
    listed = json.loads(cli(folder, "status", "--json").stdout)["data"]["tasks"]
    started = [line.split()[1].rstrip(",") for line in would if line.startswith("start ")]
    assert sorted(started) == sorted(task["id"] for task in listed)
    said = "\n".join(would)
    assert "not known yet" not in said
    for words in ("sglang serve", "dflash generate", "dflash put", "dflash plan", "dflash train"):
        assert words in said


def test_a_second_generation_box_is_one_line() -> None:
    path = REPOSITORY / "runbook" / "library" / "qwen3.6-27b-dflash.yaml"
    text = path.read_text(encoding="utf-8")
    one = load_text(text, path="r", params={"store": "s3://b/x"})
    text = text.replace("  cpu: {", "  gen-2: {group: generators}\n  cpu: {", 1)
    two = {task.id: task for task in load_text(text, path="r", params={"store": "s3://b/x"}).tasks}
    added = {task for task in two if task not in {task.id for task in one.tasks}}
    assert {task.partition("@")[2].partition("[")[0] or task for task in added} == {
        "gen-2", "download[gen-2,completions]", "download[gen-2,about]",
    }  # fmt: skip
    shares = [two[f"share@{box}"].args["sh"].split("'")[1] for box in ("gen", "gen-2")]
    assert shares == ["NR % 2 == 0", "NR % 2 == 1"], "each line on one of them"
    own = [f"${{task.serve@gen-2[{port}].out.url}}" for port in range(30000, 30007)]
    assert two["generate@gen-2"].args["servers"] == own
    waits = {need.task for need in two["tokenize"].needs}
    assert "download[gen-2,completions]" in waits


def test_no_figure_of_one_run_is_in_a_runbook() -> None:
    """They are parameters there; the simulation has the seed's."""
    figures = ("902087", "902_087", "902,087", "1805", "1,805", "1.866", "87.5", "2068", "2,068")
    for name in bundled():
        text = (REPOSITORY / "runbook" / "library" / f"{name}.yaml").read_text(encoding="utf-8")
        assert [figure for figure in figures if figure in text] == [], name


def test_progress_md_of_the_repository_is_current(tmp_path: Path) -> None:
    name = "qwen3.6-27b-dflash"
    cli(tmp_path, "init", name, *given(name), "--dir", str(tmp_path))
    fresh = (tmp_path / "PROGRESS.md").read_text(encoding="utf-8")
    kept = (REPOSITORY / "PROGRESS.md").read_text(encoding="utf-8")
    assert kept == fresh, "make it anew: scripts/render_progress.sh"


@pytest.mark.parametrize("name", [name for name in bundled() if name != "demo"])
def test_a_wrong_store_is_one_problem_in_plain_words(tmp_path: Path, name: str) -> None:
    refused = cli(tmp_path, "init", name, "-p", "store=foo")
    assert refused.returncode == 2
    problem, hint = refused.stderr.splitlines()
    assert "'foo/prompts' is not s3://BUCKET/FOLDER or file:///FOLDER (The bucket" in problem
    assert hint == "  Repeat the command with -p store=s3://BUCKET/FOLDER"


@pytest.mark.parametrize("name", bundled())
def test_every_parameter_says_what_it_is(name: str) -> None:
    text = (REPOSITORY / "runbook" / "library" / f"{name}.yaml").read_text(encoding="utf-8")
    assert [one.name for one in parameters(text) if len(one.about) < 8] == []


def test_fewer_prompts_are_generated_and_not_only_counted(tmp_path: Path) -> None:
    for name, words in (("qwen3-8b-dflash", "--limit 50"), ("qwen3.6-27b-dflash", "head -n 50")):
        folder = tmp_path / name
        few = ("-p", "prompts=50", "-p", "records=40")
        cli(tmp_path, "init", name, *given(name), *few, "--dir", str(folder))
        told = cli(folder, "run", "--dry-run", "--json")
        assert any(words in line for line in json.loads(told.stdout)["data"]["would"]), name
    refused = cli(tmp_path, "validate", "qwen3-8b-dflash", *given("qwen3-8b-dflash"), *few[:2])
    assert "limit 50 can never give the 99000 of min_rows" in refused.stderr
