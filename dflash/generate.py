"""`dflash generate`: prompts and servers in, a folder of completions out, resumable by id.

Run again after anything - a kill, a full disk, a mended prompt file, other servers - it goes on
with the prompts that have no row yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash.answers import OPEN
from dflash.client import Settings
from dflash.completions import CompletionStore, template_kwargs_of
from dflash.dispatch import Limits
from dflash.early_audit import FOLDER, EarlyAudit
from dflash.errors import DflashError, InputInvalid, UsageError
from dflash.gates import EARLY, EARLY_THINKING, early_gates, gates_help
from dflash.generating import Run
from dflash.objects import FILE, add_store_arguments, store_options
from dflash.outbox import Outbox
from dflash.progress import Progress
from dflash.prompts import TURNS, PromptFile
from dflash.quarantine import FILE as QUARANTINE
from dflash.quarantine import Quarantine
from dflash.s3 import S3, KeysExpired, StoreOptions
from dflash.s3_store import S3Store
from dflash.sampling import refuse_impossible
from dflash.servers import ServerList

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from dflash.tokenizer import TargetTokenizer

EXAMPLE = f"""example:
  python -m dflash generate --prompts prompts.jsonl --server http://127.0.0.1:30000 \\
    --server http://127.0.0.1:30001 --model qwen3 --out completions --max-tokens 4096 \\
    --thinking on --upload s3://bucket/runs/a/completions

A prompt is one line, {{"id": "a1", "messages": [{{"role": "user", "content": "..."}}]}}, and may
have "tools" and "meta". After a stop or a kill, the same command goes on.

Early audit: after --audit-after rows, and after every so many more, gates are judged; one that does
not hold ends the run with exit code 4 and a report in OUT/{FOLDER}. Unless --gate says otherwise:
  {", ".join(f"{name}={limit}" for name, limit in EARLY.items())},
  thinking={EARLY_THINKING} with --thinking on
{gates_help()}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    add = parser.add_argument
    add("--prompts", required=True, metavar="FILE", help="one prompt a line; also at s3://")
    add("--server", action="append", default=[], metavar="URL", help="may be given many times")
    add("--servers", type=Path, metavar="FILE",
        help='a list that may change: lines, or {"servers": [{"url", "state"}]}')  # fmt: skip
    add("--model", required=True, metavar="NAME", help="the name the servers serve it under")
    add("--out", required=True, type=Path, metavar="DIR", help="the folder of completions")
    add("--api", default="sglang", choices=["sglang", "openai"], help="(%(default)s)")
    add("--tokenizer", type=Path, metavar="DIR",
        help="the target's folder: exact <think> tags, and an audit by token ids")  # fmt: skip
    add("--turns", default="keep", choices=TURNS,
        help="what assistants said in the file: keep it as context; strip it and answer what the "
        "users say; or regenerate each in order, as records ID#1, ID#2 (%(default)s)")  # fmt: skip
    sampling = parser.add_argument_group("sampling").add_argument
    sampling("--max-tokens", type=int, default=2048, metavar="N", help="a completion (%(default)s)")
    sampling("--temperature", type=float, default=1.0, metavar="T", help="(%(default)s)")
    sampling("--top-p", type=float, metavar="P")
    sampling("--top-k", type=int, metavar="K", help="not known to every --api openai server")
    sampling("--min-p", type=float, metavar="P", help="not known to every --api openai server")
    sampling("--presence-penalty", type=float, metavar="X", help="against looping thoughts")
    sampling("--seed", type=int, metavar="S", help="each prompt gets its own from it")
    sampling("--thinking", default="default", choices=["on", "off", "default"],
             help="what the chat template is told (%(default)s)")  # fmt: skip
    sampling("--system", metavar="TEXT", help="for prompts without a system message")
    _add_limits(parser.add_argument_group("limits").add_argument)
    audit = parser.add_argument_group("early audit").add_argument
    audit(
        "--audit-after", type=int, default=500, metavar="N", help="rows; 0 is never (%(default)s)"
    )
    audit("--gate", action="append", default=[], metavar="NAME=VALUE", help="may be given often")
    store = parser.add_argument_group("upload")
    store.add_argument("--upload", metavar="URL",
        help="s3://BUCKET/FOLDER or file:///DIR, for shards as they are sealed")  # fmt: skip
    add_store_arguments(store)


def _add_limits(add: Any) -> None:
    add("--concurrency", type=int, default=256, metavar="K",
        help="most requests a server has at a time, if it bears them (%(default)s)")  # fmt: skip
    add("--shard-rows", type=int, default=500, metavar="N", help="(%(default)s)")
    add("--limit", type=int, metavar="N", help="only the first N prompts")
    add("--total-tokens", type=int, metavar="N", help="of the folder; none is begun after so many")
    add("--attempts", type=int, default=5, metavar="N", help="of one prompt (%(default)s)")
    add("--request-timeout", type=float, default=3600.0, metavar="SECONDS", help="(%(default)s)")
    add("--give-up-after", type=float, default=600.0, metavar="SECONDS",
        help="with no server answering (%(default)s)")  # fmt: skip
    add("--max-failed", type=float, default=0.01, metavar="SHARE",
        help="of prompts without an answer before the command fails (%(default)s)")  # fmt: skip
    add("--retry-quarantined", action="store_true", help=f"ask again what {QUARANTINE} holds")


def run(args: argparse.Namespace) -> int:
    refuse_impossible(args, positive=("request_timeout", "give_up_after"))
    for name in ("concurrency", "shard_rows", "attempts", "limit", "total_tokens"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} {value} is less than one")
    if args.audit_after < 0:
        raise UsageError(f"--audit-after {args.audit_after} is less than none")
    if not 0 <= args.max_failed <= 1:
        raise UsageError(f"--max-failed {args.max_failed:g} is no share", "From 0 to 1.")
    if args.out.exists() and not args.out.is_dir():
        raise UsageError(f"--out {args.out} is a file", "Name a folder, new or of an earlier run.")
    if not args.server and args.servers is None:
        raise UsageError("no server is named", "Give --server URL, or --servers FILE.")
    gates = early_gates(args.gate, thinking=args.thinking)
    progress = Progress(echo=sys.stderr)
    options = store_options(args)
    generate(
        prompts=PromptFile(
            local_prompts(args.prompts, args.out, options),
            turns=args.turns,
            system=args.system,
            limit=args.limit,
        ),
        servers=ServerList(args.server, args.servers),
        settings=settings_of(args),
        out=args.out,
        limits=Limits(
            concurrency=args.concurrency,
            attempts=args.attempts,
            tokens=args.total_tokens,
            give_up_after=args.give_up_after,
        ),
        shard_rows=args.shard_rows,
        request_timeout=args.request_timeout,
        max_failed=args.max_failed,
        gates=gates,
        audit_after=args.audit_after,
        tokenizer=args.tokenizer,
        upload=args.upload,
        options=options,
        release=args.retry_quarantined,
        progress=progress,
    )
    return 0


def local_prompts(where: str, out: Path, options: StoreOptions) -> Path:
    """The file itself, or a copy of the object beside the completions."""
    if where.startswith(f"{FILE}/"):
        return Path(where.removeprefix(FILE))
    if not where.startswith(S3):
        return Path(where)
    folder, _, name = where.rpartition("/")
    if not name or folder.rstrip("/") == S3.rstrip("/"):
        raise UsageError(f"--prompts {where} names no object", "Write s3://BUCKET/FOLDER/FILE.")
    store = S3Store(folder, options)
    about = store.listed(deep=False, below=name).get(name)
    if about is None:
        raise InputInvalid(f"there is no prompt file at {where}", "Check the address.")
    here = out / ".prompts.jsonl"
    store.fetch(name, about.size, here, "")
    return here


def settings_of(args: argparse.Namespace) -> Settings:
    """Sampling is always sent in full: what is left out, the server takes from elsewhere."""
    sampling = {
        "max_tokens": args.max_tokens,
        "temperature": args.temperature,
        "top_p": args.top_p,
        "top_k": args.top_k,
        "min_p": args.min_p,
        "presence_penalty": args.presence_penalty,
        "seed": args.seed,
    }
    return Settings(
        model=args.model,
        api=args.api,
        thinking=args.thinking,
        sampling={name: value for name, value in sampling.items() if value is not None},
        system=args.system,
        turns=args.turns,
    )


def generate(
    *,
    prompts: PromptFile,
    servers: ServerList,
    settings: Settings,
    out: Path,
    limits: Limits,
    shard_rows: int = 500,
    request_timeout: float = 3600.0,
    max_failed: float = 0.01,
    gates: dict[str, float | str] | None = None,
    audit_after: int = 0,
    tokenizer: Path | None = None,
    upload: str | None = None,
    options: StoreOptions | None = None,
    release: bool = False,
    progress: Progress,
) -> dict[str, Any]:
    """Complete every prompt that has no row yet; returns the folder's manifest."""
    tokens = _tokenizer(tokenizer)
    settings = replace(settings, opened=_opens_thought(tokens, prompts, settings))
    outbox = None
    if upload is not None:
        outbox = Outbox(
            out, upload, options or StoreOptions(), tell=lambda text: session.tell(text)
        )
    sealed = outbox.offer if outbox is not None else lambda entry: None
    about = settings.as_dict()
    with CompletionStore(out, settings=about, shard_rows=shard_rows, sealed=sealed) as store:
        for notice in store.notices:
            progress.emit("step", message=notice)
        _refuse_changed(prompts, store.done, out)
        quarantine = Quarantine(out, release=release)
        held = quarantine.held(prompts.digests(quarantine.ids))
        todo, stuck = prompts.left(store.done, held)
        audit = None
        if audit_after:
            audit = _early_audit(store, settings, gates, audit_after, tokens, judge=not todo)
        session = Run(
            store, settings, total=len(prompts), todo=todo, held=stuck, audit=audit,
            quarantine=quarantine, outbox=outbox, progress=progress,
        )  # fmt: skip
        session.begin(len(servers.states), prompts.dropped_turns)
        with _sending(outbox):
            if todo:
                store.reopen()
                said = store.contents(prompts.begun(store.done))
                pending = prompts.pending(store.done, held, said)
                left = _left(limits, store)
                asyncio.run(session.run(servers, pending, left, request_timeout))
        enough = session.failed <= max_failed * len(prompts)
        manifest = store.finish(complete=enough, failed=session.failed, spent=session.spent)
        missing = outbox.close(manifest, progress) if outbox is not None else []
        session.end(manifest, missing)
    if outbox is not None and missing:
        raise _not_uploaded(outbox, missing, len(manifest["shards"]) + 1)
    if not enough:
        raise _unanswered(session, len(prompts), out)
    return manifest


def _early_audit(
    store: CompletionStore,
    settings: Settings,
    gates: dict[str, float | str] | None,
    after: int,
    tokenizer: TargetTokenizer | None,
    *,
    judge: bool,
) -> EarlyAudit:
    """One that has seen the latest rows of earlier runs."""
    audit = EarlyAudit(
        store.path, gates=gates or early_gates((), thinking=settings.thinking), after=after,
        settings=settings.as_dict(), tokenizer=tokenizer,
    )  # fmt: skip
    audit.replay(store.latest(after), judge=judge)
    return audit


@contextlib.contextmanager
def _sending(outbox: Outbox | None) -> Iterator[None]:
    """The outbox at work; after a failure at once no more, the next run sends what is left."""
    if outbox is None:
        yield
        return
    outbox.start()
    try:
        yield
    except BaseException:
        outbox.stop()
        raise


def _left(limits: Limits, store: CompletionStore) -> Limits:
    """What the folder's tokens leave of the budget."""
    if limits.tokens is None:
        return limits
    return replace(limits, tokens=max(0, limits.tokens - store.tokens))


def _tokenizer(path: Path | None) -> TargetTokenizer | None:
    if path is None:
        return None
    from dflash.tokenizer import TargetTokenizer

    return TargetTokenizer(path)


def _opens_thought(
    tokenizer: TargetTokenizer | None, prompts: PromptFile, settings: Settings
) -> bool:
    """Whether the template writes `<think>` at the end of the prompt, as from Qwen3.5 on."""
    if tokenizer is None:
        return False
    first = next(prompts.pending({}))
    kwargs = template_kwargs_of(settings.as_dict(), None)
    text = tokenizer.render(first.messages, first.tools, kwargs)
    return text.rstrip().endswith(OPEN)


def _refuse_changed(prompts: PromptFile, done: dict[str, int], out: Path) -> None:
    if changed := prompts.changed(done):
        raise InputInvalid(
            f"{len(changed)} prompts, first {changed[0]!r}, differ from those answered in {out}",
            "Give changed prompts new ids, or use another --out.",
        )


def _unanswered(session: Run, prompts: int, out: Path) -> DflashError:
    return DflashError(
        f"{session.failed:,} of {prompts:,} prompts got no answer"
        + (f", the latest because of {session.last_failure}" if session.last_failure else ""),
        f"See {out / QUARANTINE}; run the same command again to ask those again that were not "
        "refused for good.",
    )


def _not_uploaded(outbox: Outbox, missing: Sequence[str], files: int) -> DflashError:
    shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
    kind = KeysExpired if outbox.keys_ended else DflashError
    return kind(
        f"{len(missing)} of {files} files are not in {outbox.url} ({shown}): {outbox.problem}",
        "All rows are kept here. Mend the cause and run the same command again: it sends what is "
        "missing.",
    )
