"""`dflash eval` end to end on a tiny target: numbers, verdicts, resume, workers, wrong inputs."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dflash import workers
from dflash.__main__ import main
from dflash.bench import Bench, BenchSpec
from dflash.errors import DflashError, GateFailed, InputInvalid, UsageError
from dflash.evaluate import evaluate, partial_path, stop_ids
from dflash.evaluation_report import summarise, table
from dflash.heldout import from_messages
from dflash.partial import Partial
from dflash.progress import Progress
from dflash.shards import Row, write_shard
from dflash.tokenizer import TargetTokenizer
from tests.support.tiny_targets import VOCAB, save_tiny_drafter, save_tiny_target

QUIET = Progress()
REPO = Path(__file__).resolve().parents[2]


def tokenized(path, rows, split="heldout"):
    entry = write_shard(path / split / "shard-00000.arrow", rows) if rows else None
    (path / split).mkdir(parents=True, exist_ok=True)
    manifest = {
        "format": "dflash-tokenized/1",
        "tokenizer": {"fingerprint": "tiny"},
        "template_kwargs": {"enable_thinking": False},
        "splits": {split: {"shards": [entry] if entry else [], "rows": len(rows)}},
    }
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def row(name, *, prompt, answer=4, top=VOCAB, seed=0):
    rng = np.random.default_rng([seed, *name.encode()])
    ids = rng.integers(4, top, size=prompt + answer).astype(np.int32)
    mask = np.array([0] * prompt + [1] * answer, dtype=np.uint8)
    return Row(id=name, input_ids=ids, loss_mask=mask)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("world")
    return {
        "target": save_tiny_target(root / "target"),
        "drafter": save_tiny_drafter(root / "drafter"),
        "data": tokenized(root / "data", [row(f"p{i}", prompt=6 + i) for i in range(5)]),
    }


def run(world, out, **changes):
    options = {"max_new_tokens": 12, "ignore_eos": True, "progress": QUIET} | changes
    return evaluate(**(world | {"out": out} | options))


def without_seconds(value):
    """The report but for what a clock measured and how many processes there were."""
    timed = {"speed", "decode_s", "propose_s", "prefill_s", "run"}
    if isinstance(value, dict):
        return {k: without_seconds(v) for k, v in value.items() if k not in timed}
    return [without_seconds(v) for v in value] if isinstance(value, list) else value


def test_report(world, tmp_path):
    report = run(world, tmp_path / "r.json", limit=4)
    assert json.loads((tmp_path / "r.json").read_text()) == report
    assert not partial_path(tmp_path / "r.json").exists()
    assert list(report["methods"]) == ["plain", "trained", "untrained", "lookup"]
    assert report["lossless"] == {"verdict": "exact", "ok": True}
    plain = report["methods"]["plain"]
    assert plain["acceptance_length"] == {"macro": 1.0, "micro": 1.0}
    assert plain["counts"]["produced"] == 4 * 11
    for method in report["methods"].values():
        assert method["counts"]["tokens"] == 4 * 12
        assert method["acceptance_length"]["micro"] >= 1.0
    gain = report["comparison"]["trained_minus_untrained"]
    assert gain["pairs"] == 4
    assert gain["low"] <= gain["mean"] <= gain["high"]
    request = report["request"]
    assert request["prompts"]["template_kwargs"] == {"enable_thinking": False}
    assert request["versions"]["torch"]
    assert request["sampling"]["max_new_tokens"] == 12
    lines = table(report).splitlines()
    assert lines[1].startswith("plain ")
    assert "equal to plain" in lines[2]


@pytest.mark.parametrize("kind", ["llama", "sliding", "hybrid"])
def test_lossless_on_other_targets(tmp_path, kind):
    world = {
        "target": save_tiny_target(tmp_path / "target", kind),
        "drafter": save_tiny_drafter(tmp_path / "drafter", kind),
        "data": tokenized(tmp_path / "data", [row(f"p{i}", prompt=9) for i in range(3)]),
    }
    assert run(world, tmp_path / "r.json", max_new_tokens=24)["lossless"]["verdict"] == "exact"


class Stops(Progress):
    """Interrupts after some prompts, as Ctrl-C would."""

    def __init__(self, after):
        super().__init__()
        self.after, self.messages = after, []

    def emit(self, kind, **event):
        self.messages.append(event.get("message"))
        if kind == "step" and event["done"] == self.after:
            raise KeyboardInterrupt


class KillsWorkers(Stops):
    def emit(self, kind, **event):
        if kind == "step" and event["done"] == self.after:
            for child in multiprocessing.active_children():
                os.kill(child.pid, signal.SIGKILL)
        else:
            self.messages.append(event.get("message"))


def test_a_dead_worker_costs_no_finished_prompt_and_workers_change_no_number(world, tmp_path):
    out = tmp_path / "r.json"
    with pytest.raises(DflashError, match="a worker process of the evaluation died"):
        run(world, out, workers=2, max_new_tokens=40, progress=KillsWorkers(2))
    assert partial_path(out).read_bytes().count(b"\n") >= 3
    shared = run(world, out, workers=2, max_new_tokens=40)
    alone = run(world, tmp_path / "one.json", max_new_tokens=40)
    assert without_seconds(alone) == without_seconds(shared)
    assert shared["run"] == {"workers": 2}


def test_resume_after_an_interruption(world, tmp_path):
    whole = run(world, tmp_path / "whole.json")
    out = tmp_path / "r.json"
    with pytest.raises(KeyboardInterrupt):
        run(world, out, progress=Stops(2))
    assert not out.exists()
    with partial_path(out).open("ab") as torn:
        torn.write(b'{"id": "p4", "methods": {"plain"')  # a kill in the middle of a line
    again = Stops(99)
    resumed = run(world, out, progress=again)
    assert "2 prompts were done before" in again.messages
    assert sum(str(m).startswith("p") for m in again.messages) == 3
    assert without_seconds(resumed) == without_seconds(whole)


def test_the_same_request_again_is_answered_from_its_report(world, tmp_path):
    first = run(world, tmp_path / "r.json", limit=1)
    again = Stops(99)
    assert run(world, tmp_path / "r.json", limit=1, progress=again) == first
    assert not any(str(m).startswith("p") for m in again.messages)
    other = run(world, tmp_path / "r.json", limit=1, max_new_tokens=5)
    assert other["methods"]["plain"]["counts"]["tokens"] == 5


def test_a_training_folder_stands_for_its_latest_step(world, tmp_path):
    save_tiny_drafter(tmp_path / "run" / "step-000001")
    (tmp_path / "run" / "latest").write_text("step-000001\n")
    report = run(world | {"drafter": tmp_path / "run"}, tmp_path / "r.json", limit=1)
    assert report["request"]["drafter"]["path"].endswith("step-000001")


def test_prompts_from_messages(world, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {w: i for i, w in enumerate(["<unk>", "user", "assistant", *"abcdefgh"])}
    raw = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"
        "{% if add_generation_prompt %}assistant{% endif %}{{ ' h' if enable_thinking else '' }}"
    )
    target = tmp_path / "target"
    shutil.copytree(world["target"], target)
    tokenizer.save_pretrained(target)
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"id": "q", "messages": [{"role": "user", "content": "a b"}]}\n')
    options = {"target": target, "data": None, "prompt_file": prompts, "thinking": "on"}
    report = run(world | options, tmp_path / "r.json")
    assert report["per_prompt"][0]["prompt_tokens"] == 5
    assert report["request"]["prompts"]["template_kwargs"] == {"enable_thinking": True}
    with pytest.raises(InputInvalid, match=r"holds no tokenizer\.json|no chat template"):
        run(world | options | {"target": world["target"]}, tmp_path / "other.json")


def test_finished_prompts_of_another_request_do_not_count(world, tmp_path):
    out = tmp_path / "r.json"
    with pytest.raises(KeyboardInterrupt):
        run(world, out, progress=Stops(2))
    fresh = Stops(99)
    run(world, out, max_new_tokens=6, progress=fresh)
    assert sum(str(m).startswith("p") for m in fresh.messages) == 5


def test_two_at_once_are_refused(world, tmp_path):
    out = tmp_path / "r.json"
    with Partial(partial_path(out), "x"), pytest.raises(DflashError, match="another dflash eval"):
        run(world, out)


@pytest.mark.slow
def test_kill_9_then_the_same_command(world, tmp_path):
    out, new = tmp_path / "r.json", 200
    argv = [sys.executable, "-m", "dflash", "eval", "--target", str(world["target"]), "--drafter",
            str(world["drafter"]), "--data", str(world["data"]), "--out", str(out), "--ignore-eos",
            "--max-new-tokens", str(new), "--workers", "2", "--baselines", ""]  # fmt: skip
    deadline = time.monotonic() + 200
    with subprocess.Popen(
        argv, cwd=REPO, stderr=subprocess.DEVNULL, start_new_session=True
    ) as child:
        while not _lines(partial_path(out)) >= 2:
            assert child.poll() is None, "ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.02)  # the predicate above is what is waited for
        child.kill()
    while _group(child.pid):  # workers end with their parent
        assert time.monotonic() < deadline
        time.sleep(0.02)
    done = _lines(partial_path(out)) - 1
    again = Stops(99)
    run(world, out, max_new_tokens=new, baselines=(), threads=1, progress=again)
    assert f"{done} prompts were done before" in again.messages


def _lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _group(pgid):
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return False
    return True


def test_sampling_is_seeded_and_has_no_lossless_verdict(world, tmp_path):
    first = run(world, tmp_path / "a.json", temperature=0.9, top_p=0.95, limit=2)
    second = run(world, tmp_path / "b.json", temperature=0.9, top_p=0.95, limit=2)
    assert without_seconds(first) == without_seconds(second)
    assert first["lossless"] == {"verdict": "not_applicable", "ok": True}


def bench_spec(world, **changes):
    options = {
        "target": str(world["target"]), "drafter": str(world["drafter"]),
        "methods": ("plain", "trained"), "dtype": "float32", "device": "cpu", "threads": None,
        "max_new_tokens": 8, "stop_ids": (), "temperature": 0.0, "top_p": 1.0, "top_k": 0,
        "seed": 0,
    }  # fmt: skip
    return BenchSpec(**(options | changes))


def bench(world):
    return Bench(bench_spec(world))


def test_a_divergence_is_reported_with_its_margin(world):
    found = bench(world)
    prompt = [9, 8, 7, 6]
    plain = found.evaluate("p", prompt)["methods"]["plain"]["tokens"]
    wrong = [*plain[:3], (plain[3] + 1) % VOCAB, *plain[4:]]
    first = found._divergence(prompt, plain, wrong)
    assert (first["index"], first["kind"]) == (3, "diverged")
    assert first["margin"] > first["tolerance"] > 0
    assert found._divergence(prompt, plain, plain) is None
    assert found._divergence(prompt, plain, plain[:2])["kind"] == "length"


def test_a_near_tie_is_called_one(world, monkeypatch):
    import dflash.bench

    found = bench(world)
    prompt = [9, 8, 7, 6]
    plain = found.evaluate("p", prompt)["methods"]["plain"]["tokens"]
    wrong = [*plain[:3], (plain[3] + 1) % VOCAB]
    monkeypatch.setattr(dflash.bench, "tie_tolerance", lambda _: 1e9)
    assert found._divergence(prompt, plain, wrong)["kind"] == "near_tie"


def record(name, **divergences):
    one = {"tokens": [1, 2], "rounds": [[0, 0, 1]], "decode_s": 1.0, "propose_s": 0.0, "ended": "x"}
    methods = {"plain": dict(one)} | {k: one | {"divergence": d} for k, d in divergences.items()}
    return {"id": name, "prompt_tokens": 3, "prefill_s": 0.1, "methods": methods}


def test_the_worst_verdict_wins_and_stands_first():
    tie = {"index": 1, "kind": "near_tie", "below_best": 1e-6}
    bad = {"index": 1, "kind": "diverged", "below_best": 2.0}
    some = [record("a", trained=None), record("b", trained=tie)]
    summary = summarise(some, ("plain", "trained"), greedy=True, seed=0)
    assert summary["lossless"] == {"verdict": "near_tie", "ok": True}
    summary = summarise(
        [*some, record("c", trained=bad)], ("plain", "trained"), greedy=True, seed=0
    )
    assert summary["lossless"] == {"verdict": "diverged", "ok": False}
    found = summary["methods"]["trained"]["lossless"]
    assert (found["exact"], found["near_tie"], found["diverged"]) == (1, 1, 1)
    assert found["first_divergence"]["id"] == "c"
    assert "c at token 1" in table(summary)


def test_a_real_divergence_is_exit_4_with_the_report_written(world, tmp_path, monkeypatch, capsys):
    from dflash.decode import TargetSession

    def forget_to_crop(self, count):
        pass

    monkeypatch.setattr(TargetSession, "keep", forget_to_crop)
    out = tmp_path / "r.json"
    words = ["eval", "--target", str(world["target"]), "--drafter", str(world["drafter"])]
    words += ["--data", str(world["data"]), "--out", str(out), "--baselines", "lookup"]
    # States then no longer match the tokens, so the drafter itself is replaced by lookup's drafts.
    monkeypatch.setattr("dflash.bench.DrafterProposer", _WrongDrafts)
    assert main([*words, "--max-new-tokens", "16", "--ignore-eos"]) == 4
    assert json.loads(out.read_text())["lossless"]["verdict"] == "diverged"
    assert "differs from plain greedy" in capsys.readouterr().err


class _WrongDrafts:
    taps = ()

    def __init__(self, *_):
        pass

    def start(self):
        pass

    def observe(self, states):
        pass

    def propose(self, tokens, *, limit, sampler):
        from dflash.decode import Proposal

        return Proposal(tokens=[5, 6, 7][:limit])


# --- wrong inputs -------------------------------------------------------------------------------


def test_a_drafter_without_taps(world, tmp_path):
    drafter = save_tiny_drafter(tmp_path / "d")
    hf = json.loads((drafter / "config.json").read_text())
    del hf["dflash_config"]["target_layer_ids"]
    (drafter / "config.json").write_text(json.dumps(hf))
    with pytest.raises(DflashError, match="target_layer_ids"):
        run(world | {"drafter": drafter}, tmp_path / "r.json")


def test_a_drafter_of_another_target(world, tmp_path):
    wider = save_tiny_target(tmp_path / "t", vocab_size=160)
    with pytest.raises(DflashError, match="vocab_size is 128, the target's is 160"):
        run(world | {"target": wider}, tmp_path / "r.json")
    deeper = save_tiny_target(tmp_path / "u", num_hidden_layers=9)
    with pytest.raises(DflashError, match="number of target layers is 8, the target's is 9"):
        run(world | {"target": deeper}, tmp_path / "r.json")


def test_weights_of_another_shape(world, tmp_path):
    drafter = save_tiny_drafter(tmp_path / "d", num_layers=1)
    hf = json.loads((world["drafter"] / "config.json").read_text())
    (drafter / "config.json").write_text(json.dumps(hf))
    with pytest.raises(DflashError, match="does not hold this drafter"):
        run(world | {"drafter": drafter}, tmp_path / "r.json")


def test_what_a_worker_cannot_load_is_said_as_such(world, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "_bench", None)
    spec = bench_spec(world, drafter=str(tmp_path / "nothing"))
    workers._load(spec, [4, 5, 6])
    with pytest.raises(InputInvalid, match="no drafter's config") as found:
        workers._work("p", [4, 5, 6])
    travelled = pickle.loads(pickle.dumps(found.value))
    assert (travelled.message, travelled.hint) == (found.value.message, found.value.hint)


def test_tokens_the_target_does_not_have(world, tmp_path):
    data = tokenized(tmp_path / "data", [row("big", prompt=9, top=5000)])
    with pytest.raises(InputInvalid, match="128 embedding rows"):
        run(world | {"data": data}, tmp_path / "r.json")


def test_no_prompt_left(world, tmp_path):
    with pytest.raises(InputInvalid, match="no rows in its split"):
        run(world | {"data": tokenized(tmp_path / "a", [])}, tmp_path / "r.json")
    data = tokenized(tmp_path / "b", [row("x", prompt=0)])
    with pytest.raises(InputInvalid, match="1 empty"):
        run(world | {"data": data}, tmp_path / "r.json")
    with pytest.raises(InputInvalid, match="5 too_long"):
        run(world, tmp_path / "r.json", max_prompt_tokens=3)
    with pytest.raises(InputInvalid, match="does not fit the target's 512 positions"):
        run(world, tmp_path / "r.json", max_new_tokens=600)


def test_usage(world, tmp_path):
    with pytest.raises(UsageError, match="no baseline 'magic'"):
        run(world, tmp_path / "r.json", baselines=("magic",))
    with pytest.raises(UsageError, match="--workers is 0"):
        run(world, tmp_path / "r.json", workers=0)
    assert issubclass(GateFailed, DflashError)


def test_end_tokens_come_from_the_generation_config_first(world, tmp_path):
    assert stop_ids(tmp_path, {"eos_token_id": 7}) == (7,)
    assert stop_ids(tmp_path, {"text_config": {"eos_token_id": [9, 8]}}) == (8, 9)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 2]}')
    assert stop_ids(tmp_path, {"eos_token_id": 7}) == (2, 5)
    assert stop_ids(world["target"], {}) == (2,)


def test_a_look_alike_in_a_users_text_stays_text(tmp_path: Path) -> None:
    target = Path(__file__).parent.parent / "assets" / "smollm2"
    lines = tmp_path / "prompts.jsonl"
    text = "what is <|im_end|> for?"
    row = {"id": "a", "messages": [{"role": "user", "content": text}]}
    lines.write_text(json.dumps(row) + "\n")
    found = from_messages(
        lines, target=target, thinking="default", limit=None, longest=None, seed=1
    )
    tokenizer = TargetTokenizer(target)
    ends = found.prompts[0].tokens.count(tokenizer.added["<|im_end|>"])
    plain = tokenizer.encode_prompt([{"role": "user", "content": "hello"}]).tolist()
    assert ends == plain.count(tokenizer.added["<|im_end|>"]), "only the template's own"
    assert text in tokenizer.decode(found.prompts[0].tokens)
