"""`dflash plan`: bytes, memory, splits and hours; what the arithmetic gives, and wrong input."""

from __future__ import annotations

import json

import pytest

from dflash import __main__ as cli
from dflash.config import DrafterConfig
from dflash.errors import DflashError
from dflash.plan_inputs import GIB, GPUS, Work, machine, pick
from dflash.plan_memory import colocated_memory, drafter_memory, target_memory
from dflash.plan_report import duration, size
from dflash.plan_shapes import TargetShape
from dflash.plan_storage import plan_storage
from dflash.plan_topology import cost, divided, plan_topology, splits, together

QWEN27B = {
    "model_type": "qwen3_5_text", "hidden_size": 5120, "intermediate_size": 17408,
    "num_hidden_layers": 64, "num_attention_heads": 24, "num_key_value_heads": 4,
    "head_dim": 256, "vocab_size": 248320, "rope_parameters": {"rope_theta": 1e7},
    "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
}  # fmt: skip
DOCUMENTS = 902_087
MEAN = 2_068


def work(**changes):
    drafter = DrafterConfig.from_target_config(
        QWEN27B, num_layers=5, block_size=16, mask_token_id=0, sliding_window=2048
    )
    options = {
        "target": TargetShape.from_config(QWEN27B, "config.json"), "drafter": drafter,
        "documents": DOCUMENTS, "mean_tokens": 2000.0, "anchors": 512, "max_length": 4096,
        "batch_docs": 4, "micro_batches": 8,
    }  # fmt: skip
    return Work(**(options | changes))


def equal_rates(count, **changes):
    """Target and drafter at one rate: the split then follows from FLOPs alone."""
    return machine("h200", count, target_fraction=0.5, drafter_fraction=0.5, **changes)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN27B))
    return path


@pytest.fixture
def plan(config, capsys, monkeypatch):
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)

    def call(kind, *options, size=("--documents", "902087", "--mean-tokens", "2068")):
        code = cli.main(["plan", kind, "--target", str(config), *size, *options])
        out = capsys.readouterr()
        return code, out.out, out.err

    return call


def test_bytes_of_stored_states():
    stored = plan_storage(work()).numbers["bytes"]
    assert size(stored["whole"]["bfloat16"]) == "92.4 TB"
    assert size(stored["whole"]["float8"]) == "46.2 TB"
    assert size(stored["anchors"]["bfloat16"]) == "23.6 TB"
    assert size(stored["anchors"]["float8"]) == "11.8 TB"
    true_mean = plan_storage(work(mean_tokens=MEAN)).numbers["bytes"]["whole"]
    assert size(true_mean["bfloat16"]) == "95.5 TB"
    assert true_mean["float8"] * 2 == true_mean["bfloat16"]
    assert stored["online"] == {"bfloat16": 0.0, "float8": 0.0}


def test_other_ways_of_storing_are_parts_of_the_whole():
    stored = plan_storage(work(), truncate=500, subset=DOCUMENTS * 2, chunk=1000).numbers["bytes"]
    whole = stored["whole"]["bfloat16"]
    assert stored["truncated"]["bfloat16"] == whole / 4
    assert stored["subset"]["bfloat16"] == whole  # a subset larger than the set is the set
    assert stored["chunked"]["bfloat16"] == pytest.approx(whole * 1000 / DOCUMENTS)
    short = plan_storage(work(mean_tokens=100.0)).numbers["bytes"]
    assert short["anchors"] == short["whole"]  # no more anchors than tokens


def test_figures_of_the_seed_stand_beside_ours_only_for_its_set():
    said = {line.what: line for line in plan_storage(work()).said}
    assert said["offline states"].said == "90 TB"
    assert said["offline states"].computed == "92.4 TB"
    assert plan_storage(work(documents=1000)).said == ()


def test_states_of_one_sequence_are_210_mb():
    one = cost(work(mean_tokens=4096.0), equal_rates(8))
    assert size(one.state_bytes) == "210 MB"


@pytest.mark.parametrize(
    ("gpus", "tokens", "anchors", "expected"),
    [(8, 4096, 512, "5:3"), (8, 2048, 512, "4:4"), (4, 2048, 128, "3:1")],
)
def test_the_best_split_is_the_references(gpus, tokens, anchors, expected):
    asked = work(mean_tokens=float(tokens), anchors=anchors, micro_batches=24)
    found = [one for one in splits(asked, equal_rates(gpus)) if one.targets]
    assert max(found, key=lambda one: one.docs_per_s).name == expected


def test_a_split_is_as_fast_as_its_slower_side():
    asked, here = work(), equal_rates(4)
    one, found = cost(asked, here), divided(asked, here, 1, 3)
    assert found.limit == "targets"
    assert found.docs_per_s == pytest.approx(1 / one.target_s)
    assert found.target_busy == 1.0
    assert found.drafter_busy < 0.5
    assert divided(asked, here, 3, 1).limit == "drafters"


def test_a_slow_link_is_the_limit_and_colocated_does_not_care():
    asked = work(anchors=16)
    slow = equal_rates(4, link="tcp10")
    assert divided(asked, slow, 3, 1).limit == "link"
    alone = machine("h200", 1, link="tcp10", target_fraction=0.5, drafter_fraction=0.5)
    assert together(asked, alone).docs_per_s > divided(asked, slow, 3, 1).docs_per_s / 4


def test_micro_batches_divide_evenly_over_drafters():
    assert divided(work(micro_batches=8), equal_rates(4), 1, 3).micro_batches == 9
    assert "--micro-batches 9" in divided(work(micro_batches=8), equal_rates(4), 1, 3).flags


def test_optimiser_states_are_the_references_27_7_gb():
    parts = drafter_memory(work(), GIB).parts
    summed_in_fp32 = 4 * parts["weights"] / 2
    states = parts["weights"] + parts["gradients"] - summed_in_fp32 + parts["masters and moments"]
    assert states == pytest.approx(27.7e9, rel=0.01)


@pytest.mark.parametrize(("anchors", "measured"), [(512, 45.5), (128, 31.9)])
def test_drafter_memory_is_near_what_a_step_was_measured_to_take(anchors, measured):
    """On an H200: one micro-batch, one table for embedding and head, states of one batch."""
    one = drafter_memory(work(anchors=anchors, max_length=2048, micro_batches=1), 96 * GIB).parts
    table, states = one["embedding and head"] / 2, one["states"] / 2
    planned = (sum(one.values()) - table - states) / GIB
    assert measured < planned < 1.2 * measured


def test_margin_follows_the_gpu_and_the_batch():
    capacity = GPUS["h200"].memory_gib * GIB
    target = target_memory(work(), capacity)
    assert target.parts["weights"] == pytest.approx(53.8e9, rel=0.01)
    assert target.fits
    assert not target_memory(work(), 45 * GIB).fits
    assert colocated_memory(work(), capacity).needed > target.needed
    smaller = drafter_memory(work(batch_docs=1), capacity)
    assert smaller.margin > drafter_memory(work(), capacity).margin


def test_nothing_fits_is_said_and_no_split_is_recommended():
    report = plan_topology(work(), machine("l40s", 4))
    assert report.numbers["best"] is None
    assert "No split fits" in report.text()
    assert "dflash train" not in report.text()


@pytest.mark.parametrize("kind", ["storage", "memory", "topology", "time"])
def test_each_plan_prints_its_assumptions_and_valid_json(plan, kind):
    code, text, _ = plan(kind)
    assert code == 0
    assert "assumptions:" in text
    assert max(map(len, text.splitlines())) < 140
    code, text, _ = plan(kind, "--json")
    report = json.loads(text)
    assert (code, report["plan"]) == (0, kind)
    assert report["assumptions"]
    assert report["numbers"]


def test_time_scales_with_epochs_and_names_every_gpu(plan):
    _, once, _ = plan("time", "--json")
    _, thrice, _ = plan("time", "--json", "--epochs", "3")
    once, thrice = json.loads(once)["numbers"], json.loads(thrice)["numbers"]
    assert thrice["seconds"] == pytest.approx(3 * once["seconds"])
    assert set(once["gpus"]) == set(GPUS)
    _, text, _ = plan("time")
    assert "16.5 days / we compute" in text


def test_measurements_replace_assumptions(plan, tmp_path):
    path = tmp_path / "measured.json"
    path.write_text(json.dumps({"target_tflops": 600, "link_gb_s": 40}))
    _, text, _ = plan("topology", "--calibrate", str(path))
    assert "target at 600 TFLOP/s (measured)" in text
    assert "40 GB/s one way (measured)" in text
    assert "drafter at 415 (assumed: 42% of 989 peak bf16)" in text


def test_the_set_is_read_from_its_manifest(plan, tmp_path):
    manifest = {"splits": {"train": {"rows": 4, "tokens": 8000}}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    _, text, _ = plan("storage", "--json", size=("--data", str(tmp_path)))
    numbers = json.loads(text)["numbers"]
    assert (numbers["documents"], numbers["mean_tokens"]) == (4, 2000.0)
    code, _, error = plan("storage", "--split", "test", size=("--data", str(tmp_path)))
    assert code == 1
    assert "no split 'test' (it has: train)" in error


def test_results_go_to_the_next_task(plan, tmp_path, monkeypatch):
    monkeypatch.setenv("RUNBOOK_OUT", str(tmp_path / "out.json"))
    plan("storage")
    assert json.loads((tmp_path / "out.json").read_text())["plan"] == "storage"


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--gpu", "h20"), 2, "Did you mean h200?"),
        (("--gpu", "toaster"), 2, "Known: a100"),
        (("--gpus", "0"), 2, "at least one GPU"),
        (("--gpu", "l40s", "--link", "nvlink"), 2, "L40S has no NVLink"),
        (("--link", "tcp"), 2, "tcp100"),
        (("--target-fraction", "1.5"), 2, "0 to 1"),
        (("--taps", "1,99"), 1, "layers 0..63"),
        (("--taps", "1,x"), 1, "1,16,31,46,61"),
        (("--layers", "0"), 2, "--layers is 0"),
        (("--anchors-per-doc", "0"), 1, "anchors must be a number above zero"),
        (("--documents", "0"), 1, "documents must be a number above zero"),
        (("--mean-tokens", "nan"), 1, "mean tokens must be a number above zero"),
        (("--calibrate", "/nowhere.json"), 1, "no measurements at /nowhere.json"),
    ],
)
def test_wrong_options_are_named_with_a_way_out(plan, options, code, words):
    found, out, error = plan("topology", *options)
    assert (found, out) == (code, "")
    assert words in error
    assert "Traceback" not in error


def test_wrong_files_are_named(plan, config, tmp_path):
    code, _, error = plan("storage", size=())
    assert code == 2
    assert "--documents and --mean-tokens" in error
    path = tmp_path / "measured.json"
    for wrong in ({"target_tflop": 1}, {"target_tflops": "fast"}, {"link_gb_s": 0}, {}):
        path.write_text(json.dumps(wrong))
        code, _, error = plan("memory", "--calibrate", str(path))
        assert code == 1
        assert "which is no measurement" in error
    (tmp_path / "manifest.json").write_text('{"splits": {"train": {"rows": 0, "tokens": 0}}}')
    assert "0 documents" in plan("time", size=("--data", str(tmp_path)))[2]
    config.write_text("{}")
    code, _, error = plan("storage")
    assert code == 1
    assert "it has no vocab_size, hidden_size" in error
    config.unlink()
    assert "there is no target's config" in plan("storage")[2]


def test_names_and_units():
    assert pick("RTX Pro 6000", GPUS, "GPU") == "rtx-pro-6000"
    assert (size(0), size(6.45e11), duration(0.019), duration(172_800)) == (
        "0 B", "645 GB", "19 ms", "2.0 days",
    )  # fmt: skip
    with pytest.raises(DflashError):
        machine("h200", 2, drafter_fraction=0.0)
