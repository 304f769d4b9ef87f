"""Last words of servers: each cause is found, noise is none, and the first fatal line counts."""

from __future__ import annotations

import pytest

from runbook.serving.diagnosis import RULES, diagnose

SAID = {
    "flag": "sglang serve: error: unrecognized arguments: --mamba-scheduler-strategy extra_buffer",
    "port": "[Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): address"
            " already in use",
    "state_pool": "RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state"
                  " cache: need 3.1 GB",
    "host_memory": "ValueError: Not enough host memory available. Requesting 80.00 GB but only"
                   " 12.31 GB are free",
    "pool": "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
            " Current value: mem_fraction_static=0.2",
    "graph_memory": "Exception: Capture cuda graph failed: CUDA out of memory.",
    "oom": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "driver": "RuntimeError: The NVIDIA driver on your system is too old (found version 12020).",
    "no_gpu": "RuntimeError: No CUDA GPUs are available",
    "kernel": "ImportError: /v/sgl_kernel/common_ops.abi3.so: undefined symbol: _ZN3c104cuda9",
    "package": "ModuleNotFoundError: No module named 'xgrammar'",
    "permission": "PermissionError: [Errno 13] Permission denied: '/models/m/config.json'",
    "template": "RuntimeError: Chat template /m/none.jinja is not a built-in template name or a"
                " valid chat template file path.",
    "drafter": "ValueError: DFLASH target_layer_ids contains an out-of-range layer id.",
    "weights": "safetensors_rust.SafetensorError: Error while deserializing header: incomplete"
               " metadata, file not fully covered",
    "shapes": "AssertionError: self.org_vocab_size=100 self.use_presharded_weights=False"
              " loaded_weight.shape[output_dim]=384",
    "model": "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/m/x'.",
    "architecture": "ValueError: Model architectures ['Foo'] are not supported for now.",
    "context": "ValueError: User-specified context_length (99999) is greater than the derived"
               " context_length (2048).",
    "dtype": "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and BFloat16",
    "tp": "AssertionError: num_attention_heads 10 must be divisible by tp_size 4",
    "nccl": "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690",
    "disk": "OSError: [Errno 28] No space left on device: '/root/.cache/flashinfer'",
    "backend": "RuntimeError: 0 active drivers ([]). There should only be one.",
    "watchdog": "[2026-01-01 10:00:00] Scheduler watchdog timeout (self.watchdog_timeout=300)",
    "killed": "Subprocess scheduler_0 (pid=77) crashed with exit code -9. Triggering SIGQUIT",
    "crash": "Subprocess scheduler_0 (pid=77) crashed with exit code -11. Triggering SIGQUIT",
    "warm_up": "Initialization failed. warmup error: Traceback (most recent call last):",
}  # fmt: skip
NOISE = """\
[2026-01-01 10:00:00] Ignore import error when loading sglang.srt.models.mllama: No module named x
[2026-01-01 10:00:00] WARNING: KV cache pool is full. Retract requests. #retracted_reqs: 3
nanobind: leaked 4 instances! undefined symbol of nobody
[2026-01-01 10:00:00] Received sigquit from a child process. It usually means the child failed.
"""


@pytest.mark.parametrize("kind", [rule.kind for rule in RULES])
def test_each_cause_is_found_among_noise(kind: str) -> None:
    found = diagnose(f"{NOISE}{SAID[kind]}\n{NOISE}")
    assert found is not None
    assert found.kind == kind
    assert found.line == SAID[kind]
    assert found.next


def test_the_program_text_of_a_traceback_says_nothing() -> None:
    quoted = '    raise OSError(f"{path} is not a valid JSON file")\n    raise MemoryError\n'
    found = diagnose(f"Traceback (most recent call last):\n{quoted}KeyError: 'x'\n")
    assert found is not None
    assert (found.kind, found.line) == ("exception", "KeyError: 'x'")


def test_noise_is_no_diagnosis() -> None:
    assert diagnose(NOISE) is None
    assert diagnose("") is None


def test_what_came_first_counts_and_a_death_only_when_nothing_else_is_said() -> None:
    both = f"{SAID['killed']}\n{SAID['oom']}\n{SAID['watchdog']}"
    found = diagnose(both)
    assert found is not None
    assert found.kind == "oom"


def test_an_unknown_exception_is_told_above_the_signal() -> None:
    text = "Scheduler hit an exception: Traceback (most recent call last):\n  File x\n"
    found = diagnose(f"{text}KeyError: 'model.layers.3'\n{NOISE}{SAID['killed']}")
    assert found is not None
    assert (found.kind, found.line, found.final) == ("exception", "KeyError: 'model.layers.3'",
                                                     False)  # fmt: skip


def test_a_refused_flag_gets_its_name_of_today() -> None:
    found = diagnose(SAID["flag"])
    assert found is not None
    assert found.next == "write --mamba-radix-cache-strategy for --mamba-scheduler-strategy"
    other = diagnose("sglang serve: error: argument --dtype: invalid choice: 'int4'")
    assert other is not None
    assert other.next.startswith("mend")
