"""What is known of a machine, from recorded facts with their age. Pure; reads facts leniently.

Facts come from a host and from probes of other versions: any of them may be missing or odd.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from runbook.placement import SHM as SHM_LEASE
from runbook.placement import holders
from runbook.reasons import found_instead, link_word
from runbook.tui import board_model as model
from runbook.tui import format as fmt
from runbook.tui.attention_model import rental
from state.telling import told_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from runbook.tui.describe import Looks
    from runbook.views import View
    from state.model import HostBinding

SKEW_S = 2.0
"""A clock further off than this confuses who compares times."""
MOST_MOUNTS = 12
SHM = "/dev/shm"  # noqa: S108 - a label


def bound(view: View, role: str) -> HostBinding | None:
    """The machine behind a role."""
    return next((host for host in view.snapshot.hosts if host.role == role), None)


def place_of(host: HostBinding) -> str:
    """Where it is, as one would type it."""
    return "this machine" if host.kind == "local" else fmt.clean(host.place)


def state_of(view: View, host: HostBinding | None) -> tuple[str, str]:
    """Glyph state and word."""
    if host is None:
        return "gated", "not bound"
    if host.unreachable_since:
        return "attention", link_word(view.snapshot, host.role)
    return "serving", "answers"


def sections(
    view: View, role: str, looks: Looks, *, now: datetime, width: int
) -> Iterator[tuple[str, list[Text]]]:
    """Label and lines, for the pane."""
    host = bound(view, role)
    if host is None:
        yield (
            "machine",
            [
                Text("No machine plays this role yet; b says which does.", style=looks.inks.warn),
                fmt.text(f"runbook host bind {role} USER@ADDRESS    or: local", looks.inks.text),
            ],
        )
        yield from _tasks(view, role, looks)
        return
    yield from facts_of(host, view, looks, now=now, width=width)
    servers = list(_servers(view, role, looks))
    if servers:
        yield "servers", servers
    yield from _tasks(view, role, looks)


def facts_of(
    host: HostBinding, view: View, looks: Looks, *, now: datetime, width: int
) -> Iterator[tuple[str, list[Text]]]:
    """The part about the machine itself."""
    facts = host.facts
    yield "machine", list(_machine(host, view, looks, now))
    rent = rental(host)
    if rent["price"] is not None or rent["ends"] is not None:
        yield "rent", [_rent(rent, looks, now)]
    if facts:
        yield "cpu", [_cpu(facts, looks)]
        yield "memory", list(_memory(facts, looks, width))
        gpus = list(_gpus(facts, looks, width))
        yield "gpus", gpus or [Text("none that nvidia-smi shows", style=looks.inks.muted)]
        yield SHM, [*_shm(facts, looks, width), *_shm_leases(view, host.role, looks)]
        radar = list(_radar(facts.get("radar"), looks))
        if radar:
            yield "folders", radar
        mounts = list(_mounts(facts, looks))
        if mounts:
            yield "mounts", mounts
        warnings = list(_warnings(facts, looks))
        if warnings:
            yield "beware", warnings
    else:
        yield "facts", [Text("none recorded yet; P asks the machine", style=looks.inks.muted)]


def _machine(host: HostBinding, view: View, looks: Looks, now: datetime) -> Iterator[Text]:
    inks, facts = looks.inks, host.facts
    about = [facts.get("hostname"), facts.get("distribution"), facts.get("container")]
    said = ", ".join(fmt.clean(one) for one in about if one)
    yield Text.assemble((place_of(host), inks.text), (f"  {said}" if said else "", inks.muted))
    if facts.get("reached"):
        yield fmt.text(f"reached as {fmt.clean(facts['reached'])}", inks.muted)
    seen = fmt.between(model.seen(view, host.role), now)
    age = f"last answer {fmt.duration(seen)} ago" if seen is not None else "has not answered yet"
    epoch = f"  {looks.glyphs.dot} epoch {fmt.clean(host.epoch)}" if host.epoch else ""
    yield Text.assemble((age + epoch, inks.muted))
    if host.unreachable_since:
        gone = fmt.duration(fmt.between(host.unreachable_since, now))
        found = fmt.clean(found_instead(view.snapshot, host.role))
        said = f"{link_word(view.snapshot, host.role)} for {gone}: {found}{'; ' if found else ''}"
        yield Text(f"{said}what runs there may well go on", style=inks.warn)
    clock = _clock(facts, looks)
    if clock is not None:
        yield clock


def _clock(facts: Mapping[str, Any], looks: Looks) -> Text | None:
    told = _mapping(facts.get("clock"))
    off = _number(told.get("offset_s", facts.get("clock_offset_s")))
    if off is None:
        return None
    unsure = _number(told.get("error_s")) or 0.0
    bad = abs(off) - unsure > SKEW_S
    said = f"its clock is {abs(off):.1f} s {'ahead' if off > 0 else 'behind'}"
    if abs(off) <= unsure:
        said = f"its clock agrees with ours, within {unsure:.1f} s"
    return Text(said, style=looks.inks.warn if bad else looks.inks.muted)


def _rent(rent: Mapping[str, Any], looks: Looks, now: datetime) -> Text:
    line = Text()
    price = _number(rent["price"])
    if price is not None:
        line.append(f"${price:.2f} an hour", looks.inks.text)
    elif rent["price"] is not None:
        line.append(fmt.clean(rent["price"]), looks.inks.text)
    end = fmt.parse_time(str(rent["ends"] or ""))
    if end is not None:
        left = (end - now).total_seconds()
        ink = looks.inks.warn if left < 7200 else looks.inks.muted
        when = f"{fmt.duration(left)} left" if left > 0 else "over"
        line.append(f"{'  ' if line else ''}until {end:%d %b %H:%M} UTC, {when}", ink)
    return line


def _cpu(facts: Mapping[str, Any], looks: Looks) -> Text:
    cpu = _mapping(facts.get("cpu"))
    count = cpu.get("usable") or cpu.get("count") or "?"
    line = Text.assemble((f"{fmt.clean(count)} cores", looks.inks.text))
    if cpu.get("cgroup_cpus"):
        line.append(f", {fmt.number(cpu['cgroup_cpus'])} allowed", looks.inks.text)
    load = _number(cpu.get("load"))
    if load is not None:
        line.append(f"  load {load:.1f}", looks.inks.text)
    if cpu.get("model"):
        line.append(f"  {fmt.clean(cpu['model'])}", looks.inks.muted)
    return line


def _memory(facts: Mapping[str, Any], looks: Looks, width: int) -> Iterator[Text]:
    memory = _mapping(facts.get("memory"))
    total, free = _number(memory.get("total_bytes")), _number(memory.get("available_bytes"))
    limit, used = (
        _number(memory.get("cgroup_limit_bytes")),
        _number(memory.get("cgroup_used_bytes")),
    )
    if total and free is not None:
        yield _use(total - free, total, looks, width)
    if limit and used is not None:
        yield Text("of which this container may have:", style=looks.inks.muted)
        yield _use(used, limit, looks, width)


def _gpus(facts: Mapping[str, Any], looks: Looks, width: int) -> Iterator[Text]:
    found = facts.get("gpus")
    for gpu in found if isinstance(found, list) else ():
        one = _mapping(gpu)
        total, used = _number(one.get("memory_bytes")), _number(one.get("used_bytes"))
        line = Text.assemble((f"{fmt.clean(one.get('index', '?'))} ", looks.inks.muted))
        line.append(f"{fmt.clean(one.get('name') or 'GPU')}  ", looks.inks.text)
        if total and used is not None:
            line.append_text(_use(used, total, looks, width - line.cell_len - 12))
        load = _number(one.get("utilization_pct", one.get("utilization", one.get("load"))))
        if load is not None:
            load = load * 100 if "load" in one and load <= 1 else load
            line.append(f"  {load:.0f}% busy", looks.inks.text)
        heat = _number(one.get("temperature_c"))
        if heat is not None:
            line.append(f"  {heat:.0f} C", looks.inks.warn if heat >= 85 else looks.inks.muted)
        users = one.get("processes")
        if isinstance(users, list) and users:
            line.append(
                f"  {len(users)} process{'' if len(users) == 1 else 'es'}", looks.inks.muted
            )
        yield line


def _shm(facts: Mapping[str, Any], looks: Looks, width: int) -> Iterator[Text]:
    shm = _mapping(facts.get("shm"))
    total, free = _number(shm.get("size_bytes")), _number(shm.get("free_bytes"))
    if not total or free is None:
        yield Text("none", style=looks.inks.warn)
        return
    yield _use(total - free, total, looks, width)
    behind = _number(shm.get("memory_behind_bytes"))
    if behind is not None and behind < free:
        yield Text(f"only {fmt.size(behind)} of memory stand behind it", style=looks.inks.warn)
    leases = shm.get("leases")
    for lease in leases if isinstance(leases, list) else ():
        yield fmt.text(fmt.value(lease), looks.inks.muted)


def _shm_leases(view: View, role: str, looks: Looks) -> Iterator[Text]:
    """Who keeps how much of it, by the graph: what counts when the next task wants some."""
    for task in holders(view.snapshot):
        for name in task.resources if task.role == role else ():
            if name.startswith(SHM_LEASE):
                amount = name.removeprefix(SHM_LEASE)
                size = fmt.size(int(amount)) if amount.isdigit() else fmt.clean(amount)
                yield Text.assemble(
                    (f"{fmt.clean(task.id)} ", looks.inks.text),
                    (f"has {size} leased", looks.inks.muted),
                )


def _mounts(facts: Mapping[str, Any], looks: Looks) -> Iterator[Text]:
    """Those worth a look: slow, hung or remote ones first, then where work goes."""
    found = facts.get("mounts")
    rows = (
        [_mapping(one) for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    )
    real = [row for row in rows if _number(row.get("total_bytes")) or _verdict(row)]
    real.sort(key=lambda row: (not _verdict(row), -(_number(row.get("total_bytes")) or 0)))
    seen: set[tuple[Any, Any]] = set()
    paths: set[Any] = set()
    shown = []
    for row in real:
        same = (row.get("total_bytes"), row.get("free_bytes"))
        if same not in seen or (_verdict(row) and row.get("path") not in paths):
            paths.add(row.get("path"))  # bind mounts of one disk are one disk
            seen.add(same)
            shown.append(row)
    for row in shown[:MOST_MOUNTS]:
        verdict = _verdict(row)
        line = Text.assemble((fmt.clean(row.get("path")), looks.inks.text))
        line.append(f"  {fmt.clean(row.get('type') or '')}", looks.inks.muted)
        free = _number(row.get("free_bytes"))
        if free is not None:
            line.append(f"  {fmt.size(free)} free", looks.inks.text)
        if verdict:
            line.append(f"  {verdict}", looks.inks.warn)
        yield line
    if len(shown) > MOST_MOUNTS:
        yield Text(f"and {len(shown) - MOST_MOUNTS} more", style=looks.inks.muted)


def _verdict(row: Mapping[str, Any]) -> str:
    """What is wrong with a mount; empty when nothing is."""
    if row.get("hung"):
        return "hangs: nothing may touch it"
    if row.get("verdict") not in (None, "", "ok", "fast"):
        return fmt.clean(row["verdict"])
    if row.get("slow"):
        return "slow: no environments or models on it"
    if row.get("network"):
        return "network: no environments on it"
    return "read-only" if row.get("read_only") and row.get("error") else ""


def _radar(rows: Any, looks: Looks) -> Iterator[Text]:
    """How fast the folders are that work goes to."""
    inks, glyphs = looks.inks, looks.glyphs
    for row in rows if isinstance(rows, list) else ():
        one = _mapping(row)
        said = fmt.clean(one.get("verdict") or "unknown")
        why = fmt.clean(one["why"]) if one.get("why") else ""
        good, open_ = said == "ok", said == "unknown"
        mark = glyphs.ok if good else glyphs.dot if open_ else glyphs.bad
        rate = _number(one.get("read_bytes_s"))
        word = f"fast, reads {fmt.size(rate)}/s" if good and rate else "fast" if good else said
        if open_:
            word, why = (
                ("empty, so not measured yet", "") if _absent(one) else ("not measured", why)
            )
        yield Text.assemble(
            (f"{mark} ", inks.ok if good else inks.muted if open_ else inks.warn),
            (f"{fmt.clean(one.get('path'))}  ", inks.text),
            (word, inks.muted if good or open_ else inks.warn),
            (f"  {why}" if why else "", inks.muted),
        )


def _absent(row: Mapping[str, Any]) -> bool:
    return bool(row.get("absent")) or "nothing there" in str(row.get("why") or "")


def _warnings(facts: Mapping[str, Any], looks: Looks) -> Iterator[Text]:
    ports = facts.get("public_ports")
    if isinstance(ports, list) and ports:
        said = ", ".join(fmt.clean(port) for port in ports[:12])
        yield Text(f"listening on more than loopback: {said}", style=looks.inks.warn)


def _servers(view: View, role: str, looks: Looks) -> Iterator[Text]:
    for task in view.snapshot.tasks:
        if task.role != role or task.kind != "service" or task.removed:
            continue
        state = told_state(task)
        line = Text.assemble(
            (f"{looks.glyphs.state(state)} ", looks.inks.state(state)),
            (f"{task.id}  ", looks.inks.text), (f"{state}  ", looks.inks.state(state)),
        )  # fmt: skip
        for key in ("url", "port", "model"):
            if key in task.out:
                line.append(f"{fmt.value(task.out[key])}  ", looks.inks.muted)
        speed = _speed(view, task.id)
        if speed is not None:
            line.append(f"{fmt.number(round(speed))} tok/s  ", looks.inks.text)
        progress = model.progress_of(view, task.id) or {}
        if task.state in model.OPEN and progress.get("message"):
            line.append(fmt.clean(progress["message"], most=120), looks.inks.muted)
        yield line
        if task.state in ("starting", "unhealthy", "draining") and task.reason:
            yield fmt.text(f"  {task.reason}", looks.inks.warn)


def _speed(view: View, task: str) -> float | None:
    progress = model.progress_of(view, task)
    metrics = _mapping(progress.get("metrics")) if progress is not None else {}
    for name in ("tok/s", "tok_s", "gen_throughput", "tokens_per_s"):
        if _number(metrics.get(name)) is not None:
            return _number(metrics[name])
    return None


def _tasks(view: View, role: str, looks: Looks) -> Iterator[tuple[str, list[Text]]]:
    here = [t for t in view.snapshot.tasks if t.role == role and not t.removed]
    running = [t for t in here if t.state in model.OPEN and t.kind != "service"]
    lines = []
    for task in running:
        state = str(task.state)
        share = model.fraction(model.progress_of(view, task.id))
        lines.append(
            Text.assemble(
                (f"{looks.glyphs.state(state)} ", looks.inks.state(state)),
                (f"{task.id}  ", looks.inks.text), (state, looks.inks.state(state)),
                (f"  {share:.0%}" if share is not None else "", looks.inks.text),
            )
        )  # fmt: skip
    done = sum(task.state in model.FINISHED for task in here)
    lines.append(Text(f"{done} of {len(here)} tasks here are done", style=looks.inks.muted))
    yield "tasks", lines


def _use(used: float, total: float, looks: Looks, width: int) -> Text:
    """A bar, and the numbers: the bar alone says nothing exact."""
    share = max(0.0, min(1.0, used / total)) if total else 0.0
    if width < 40:
        return Text(f"{fmt.size(used)} of {fmt.size(total)}", style=looks.inks.text)
    on, off = fmt.bar(share, max(6, min(24, width - 34)), ascii_only=looks.glyphs.ascii_only)
    ink = looks.inks.warn if share > 0.9 else looks.inks.busy
    return Text.assemble(
        (on, ink), (off, looks.inks.faint),
        (f" {fmt.size(used)} of {fmt.size(total)}", looks.inks.text),
    )  # fmt: skip


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)
