"""From the last words of a server to what ended it and what to do about it.

A server's last line is rarely the cause: a child dies, its parent says that it got a signal. So the
first fatal line counts, and what is known to be harmless is passed over. The patterns were read in
SGLang's sources and provoked with SGLang 0.5.23 on a CPU where that can fail so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from runbook.serving.flags import near

LONGEST_LINE = 240
NOISE = re.compile(
    r"nanobind: leaked|Only CUDA, HIP and XPU support AWQ|Ignore import error when loading|"
    r"Received sigquit from a child process|SIGQUIT received\.|resource_tracker: |"
    r"KV cache pool is full\. Retract|WARNING|FutureWarning|UserWarning|server_args="
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What ended a server."""

    kind: str
    cause: str
    next: str
    line: str
    """The line of its log that says so."""
    final: bool = True
    """Unchanged, it ends the same way again."""

    @property
    def said(self) -> str:
        """In one sentence, with the next step."""
        return f"{self.cause}. Next: {self.next}. Its log: {self.line}"


@dataclass(frozen=True, slots=True)
class Rule:
    """A fatal line and what it means."""

    kind: str
    pattern: str
    cause: str
    next: str
    final: bool = True


RULES = (
    Rule("flag", r"(?:^|\s)\S+(?: \w+)?: error: (?:unrecognized arguments|ambiguous option|"
         r"argument|the following arguments)|No such option: ",
         "its command line is refused", "mend `extra` or the argument in runbook.yaml"),
    Rule("port", r"[Aa]ddress already in use|Errno 98\]|EADDRINUSE",
         "its port is taken", "free the port or give it another: "
         "`runbook doctor` and `ss -ltnp` name the holder", final=False),
    Rule("state_pool", r"Not enough GPU memory for hybrid|Not enough space for mamba cache|"
         r"state cache is too small",
         "the state pool of the hybrid model is too small",
         "raise `state_ratio` or `mem_fraction`, take `state_dtype: bfloat16`, lower "
         "`max_running_requests`, or switch `radix_cache` off (one state a request, not five)"),
    Rule("host_memory", r"Not enough host memory",
         "the host cache does not fit into memory",
         "lower `hicache_gb` (it counts per server, beside models in /dev/shm), or leave "
         "`hierarchical_cache` off"),
    Rule("pool", r"Not enough memory\. Please try to increase --mem-fraction-static|"
         r"leave no GPU memory for the KV cache|max_total_num_tokens.{0,40}(?:<= 0|too small)",
         "no room for the KV pool beside the weights",
         "raise `mem_fraction`, lower `context_length`, or take more GPUs (`tp`)"),
    Rule("graph_memory", r"Capture cuda graph failed: .*out of memory",
         "memory ran out while CUDA graphs were captured",
         "lower `mem_fraction` by 0.05, or `max_running_requests`"),
    Rule("oom", r"(?:Prefill|Decode) out of memory|OutOfMemoryError|CUDA out of memory|"
         r"DefaultCPUAllocator: can't allocate memory|DefaultCPUAllocator: not enough memory|"
         r"\bMemoryError\b|memory allocation of \d+ bytes failed|Cannot allocate memory|"
         r"std::bad_alloc",
         "memory ran out", "lower `mem_fraction`, `max_running_requests` or the prefill chunk "
         "(`extra: [--chunked-prefill-size, \"4096\"]`)"),
    Rule("driver", r"NVIDIA driver on your system is too old|CUDA driver version is insufficient|"
         r"forward compatibility was attempted|CUDA error: system ",
         "CUDA of the environment and the driver of the machine do not fit",
         "update the driver, or make the environment for the CUDA version that `nvidia-smi` shows"),
    Rule("no_gpu", r"No CUDA GPUs are available|no CUDA-capable device|invalid device ordinal|"
         r"Torch not compiled with CUDA enabled|has no attribute '_cuda_|Found no NVIDIA driver",
         "it sees no GPU", "compare `gpus` with `nvidia-smi -L`, and the environment's torch: "
         "`runbook host probe ROLE`"),
    Rule("kernel", r"with minimum required version|less than the minimum required version|"
         r"no kernel image is available|\[sgl_kernel\] CRITICAL|(?:ImportError|"
         r"ModuleNotFoundError)\b.*(?:sgl_kernel|sglang.kernel|flashinfer|flash_attn|vllm)|"
         r"undefined symbol|Could not find (?:nvcc|ninja)|ninja: command not",
         "a kernel library is missing or made for another version",
         "make the environment anew from its lock (`runbook retry` of the venv task)"),
    Rule("package", r"^(?:\[[^\]]*\] )?(?:ImportError|ModuleNotFoundError): \S",
         "a package is missing in its environment, or is another version's",
         "make the environment anew from its lock (`runbook retry` of the venv task)"),
    Rule("permission", r"PermissionError\b|Permission denied",
         "its user may not read or write a file",
         "look at the owner and the mode of what its log names (`namei -l PATH`)"),
    Rule("template", r"[Cc]hat template .{0,300}(?:not a|not found|does not exist|invalid)",
         "its chat template is not to be had",
         "look at `extra`: --chat-template takes a file on the host, or a name that SGLang knows"),
    Rule("weights", r"SafetensorError|MetadataIncompleteBuffer|incomplete metadata|"
         r"deserializing header|HeaderTooLarge|PytorchStreamReader failed",
         "a weight file is cut off or damaged",
         "copy the model anew: `runbook verify` its task, then `runbook retry` it"),
    Rule("shapes", r"loaded_weight\.shape|size mismatch for|[Ss]hape mismatch.{0,60}weight",
         "its weights are of another shape than its config.json says",
         "take all files of one model: copy it anew from its source"),
    Rule("model", r"Repo id must (?:be in the form|use)|does not appear to have a file named|"
         r"is not a local folder and is not a valid model identifier|LocalEntryNotFoundError|"
         r"OfflineModeIsEnabled|Unrecognized model in|is not a valid JSON file|"
         r"Cannot find any model weights|outgoing traffic has been disabled|"
         r"(?:FileNotFoundError|NotADirectoryError)\b.*(?:config\.json|safetensors|tokenizer)",
         "there is no such model on the host",
         "look at `model`: a folder with config.json, tokenizer and safetensors that its user may "
         "read"),
    Rule("architecture", r"Model architectures .* (?:are|is) not supported|"
         r"is not a registered model|"
         r"does not recognize this architecture|"
         r"(?:set the option|pass the argument|requires) .{0,30}trust_remote_code",
         "this engine does not know the model's architecture",
         "take a release that lists it; `trust_remote_code` runs the model's own code"),
    Rule("context", r"context_length \(\d+\) is greater than the derived context_length|"
         r"max_model_len.*is greater than the derived",
         "`context_length` is more than the model was made for", "lower `context_length`"),
    Rule("dtype", r"(?:must|should|to) have the same dtype|expected scalar type|"
         r"[Bb]float16 is only supported on GPUs|Unknown dtype|not implemented for '(?:H|BF)\w*'|"
         r"dtype.{0,60}(?:not supported|unsupported|invalid)",
         "the model does not run in this type", "give another `dtype`, such as float32 on a CPU"),
    Rule("tp", r"(?:num_attention_heads|vocab.size|hidden.size|num.*heads).{0,80}divisible|"
         r"tp_size.*(?:divisible|exceeds)|world_size.{0,40}(?:greater|larger)",
         "the model does not divide by `tp`", "take a `tp` that divides its attention heads"),
    Rule("nccl", r"NCCL (?:error|WARN)|ncclInternalError|ncclSystemError|DistNetworkError",
         "the GPUs of the server do not find each other",
         "look at `nccl_port`, and at `nvidia-smi topo -m`", final=False),
    Rule("disk", r"No space left on device|Disk quota exceeded",
         "a disk is full", "free some, or another folder for caches", final=False),
    Rule("backend", r"[Aa]ttention backend.{0,80}not (?:supported|available)|0 active drivers|"
         r"requires? (?:CUDA|a GPU)|(?:backend|model impl).{0,40} is only supported on|"
         r"only supports CUDA|[Bb]ackend requires SM|decoding is not supported by|"
         r"torch\.cuda.{0,40}not available",
         "a feature needs hardware that this machine lacks",
         "take it out of the task (speculation, the host cache and hybrid models need a GPU)"),
    Rule("drafter", r"Error: .*(?:\bD(?:FLASH|Flash)\b|--speculative-|[Dd]raft model)",
         "the drafter or its flags do not fit the target",
         "look at `drafter`, a folder that `export` wrote for this target, and its block size"),
    Rule("watchdog", r"watchdog timeout",
         "a step took longer than its watchdog allows",
         "look at the stacks in its log; raise `extra: [--watchdog-timeout, \"900\"]` only when "
         "single steps are that long", final=False),
    Rule("killed", r"crashed with exit code -9|died during initialization \(exit code: -9\)",
         "one of its processes was killed from outside, as the kernel does when memory is short",
         "look at `dmesg` and the memory of the host", final=False),
    Rule("crash", r"crashed with exit code -(?:11|7|6)|"
         r"died during initialization \(exit code: -?\d+\)|Segmentation fault|SIGBUS|core dumped",
         "one of its processes crashed", "look at the stacks in its log; /dev/shm may be full",
         final=False),
    Rule("warm_up", r"Initialization failed\. warmup error",
         "its first request failed", "look for what it says above; another program on its port?",
         final=False),
)  # fmt: skip
COMPILED = tuple((rule, re.compile(rule.pattern)) for rule in RULES)
CHAINED = {"oom": "graph_memory"}
"""What is raised while the first is handled, and says more: the first stands above it."""
OUT_OF_MEMORY = frozenset({"oom", "pool", "state_pool", "graph_memory", "host_memory"})
LAST_RESORT = frozenset({"killed", "crash", "warm_up", "watchdog"})
"""What another failure brings about; they count only when nothing else is said."""
EXCEPTION = re.compile(r"^(?:\[[^\]]*\]\s*)?((?:\w+\.)*\w*(?:Error|Exception|Exit)): \S")
FLAG = re.compile(r"(--[\w-]+)")


def diagnose(log: str) -> Diagnosis | None:
    """What ended a server, by the end of its log; None when nothing there says so."""
    said = _said(log)
    matched = [found for line in said if (found := _match(line))]
    for first in matched:
        if first.kind not in LAST_RESORT:
            more = CHAINED.get(first.kind)
            return next((found for found in matched if found.kind == more), first)
    raised = next((line for line in said if EXCEPTION.match(line) and not _match(line)), None)
    if raised:
        return Diagnosis(
            kind="exception", cause="it failed", line=_short(raised), final=False,
            next="look at its whole log",
        )  # fmt: skip
    return matched[0] if matched else None


def will_never_serve(log: str) -> bool:
    """Whether it is certain before its end: it could not bind its port.

    SGLang then waits minutes for whoever has the port to answer, and keeps its GPU meanwhile.
    """
    return "error while attempting to bind on address" in log


def last_words(log: str) -> str:
    """The last line that is not known to say nothing."""
    said = _said(log)
    return _short(said[-1]) if said else ""


def _said(log: str) -> list[str]:
    """Without noise, and without the program text of tracebacks: it quotes messages not raised."""
    lines = [line.rstrip() for line in log.split("\n")]
    return [line for line in lines if line and not line[0].isspace() and not NOISE.search(line)]


def _match(line: str) -> Diagnosis | None:
    for rule, pattern in COMPILED:
        if pattern.search(line):
            return _made(rule, line)
    return None


def _made(rule: Rule, line: str) -> Diagnosis:
    hint = rule.next
    if rule.kind == "flag":
        hint = _near_names(line) or hint
    return Diagnosis(
        kind=rule.kind, cause=rule.cause, next=hint, line=_short(line), final=rule.final
    )


def _near_names(line: str) -> str:
    found = FLAG.search(line.partition("error:")[2])
    names = near(found.group(1)) if found else []
    if not found or found.group(1) in names or "invalid choice" in line:
        return ""
    return f"write {' or '.join(names)} for {found.group(1)}" if names else ""


def _short(line: str) -> str:
    flat = " ".join(line.split())
    return flat if len(flat) <= LONGEST_LINE else flat[: LONGEST_LINE - 3] + "..."
