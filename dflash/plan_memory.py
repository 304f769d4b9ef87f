"""`dflash plan memory`: what lies on each role's GPU at the worst moment, and what is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash.plan_inputs import GIB
from dflash.plan_report import PlanReport, Table, gib
from dflash.plan_shapes import LINEAR, drafter_parameters
from dflash.train_config import ring_buffers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dflash.plan_inputs import Machine, Work

BF16, FP32 = 2, 4
RESERVED_GIB = 2.5
"""CUDA context, cuBLAS workspaces and NCCL buffers."""
FRAGMENTATION = 0.06
LOGIT_BYTES = 2
"""Of one logit in the head's chunk: bf16, written over by its gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleMemory:
    """Bytes by part on one GPU of a role."""

    role: str
    parts: Mapping[str, float]
    capacity: float

    @property
    def needed(self) -> float:
        return sum(self.parts.values()) * (1 + FRAGMENTATION) + RESERVED_GIB * GIB

    @property
    def margin(self) -> float:
        return self.capacity - self.needed

    @property
    def fits(self) -> bool:
        return self.margin >= 0


def target_memory(work: Work, capacity: float) -> RoleMemory:
    """The whole frozen text model in bf16, one forward without gradients, states to send.

    Source: at inference one layer's widest moment lives at a time: gate, up and product of the MLP
    or the inputs of the mixing, beside a few copies of the residual stream.
    """
    shape, tokens = work.target, work.batch_tokens
    queries = shape.heads * shape.head_dim * (2 if shape.gated else 1)
    mixing = 3 * queries + 2 * shape.kv_heads * shape.head_dim
    if shape.linear is not None and LINEAR in shape.layer_types:
        # q, k, v before and after the convolution and in fp32, gate, and the state of each row
        mixing = max(mixing, 4 * shape.linear.conv_width + 2 * shape.linear.out_width)
    widest = max(3 * shape.intermediate, mixing)
    state = tokens * work.state_bytes()
    return RoleMemory(
        role="target",
        parts={
            "weights": BF16 * shape.parameters,
            "forward": BF16 * tokens * (widest + 6 * shape.hidden),
            "states": (1 + work.ring) * state,
        },
        capacity=capacity,
    )


def drafter_memory(
    work: Work, capacity: float, *, targets: int = 1, drafters: int = 1
) -> RoleMemory:
    """Weights and optimiser, the target's embedding and head, saved activations, states received.

    Source of the optimiser's part: bf16 weight and gradient, fp32 master and two fp32 moments (2 +
    2 + 4 + 4 + 4 bytes a weight); gradients of several micro-batches are summed in fp32 (4 more),
    and copied once more for the all-reduce among several drafters (4 more).
    """
    summed = work.micro_batches > 1 or drafters > 1
    drafter, tokens = work.drafter, work.batch_tokens
    parameters = drafter_parameters(drafter)
    block_tokens = work.batch_blocks * drafter.block_size
    tables = 1 if work.target.tied else 2
    return RoleMemory(
        role="drafter",
        parts={
            "weights": BF16 * parameters,
            "gradients": (BF16 + FP32 * summed + FP32 * (drafters > 1)) * parameters,
            "masters and moments": 3 * FP32 * parameters,
            "embedding and head": BF16 * tables * work.target.embedding_params,
            "activations": block_tokens * drafter.num_layers * saved_bytes(work)
            + BF16 * block_tokens * (drafter.intermediate_size + 4 * drafter.hidden_size)
            + tokens * context_bytes(work),
            "head chunk": work.head_chunk_rows * drafter.vocab_size * LOGIT_BYTES
            + 2 * BF16 * block_tokens * drafter.hidden_size,
            "states": ring_buffers(work.ring, targets, drafters) * tokens * work.state_bytes(),
        },
        capacity=capacity,
    )


def saved_bytes(work: Work) -> float:
    """What one layer keeps of one block token for its backward, bf16.

    Source: the residual stream before each of the two norms (2 H), q, k and v as projected,
    attention's output, gate and up (2 I); norms, rotation and the activated gate are made again.
    """
    one = work.drafter
    queries, keys = one.num_heads * one.head_dim, one.num_kv_heads * one.head_dim
    return BF16 * (2 * one.hidden_size + 2 * queries + 2 * keys + 2 * one.intermediate_size)


def context_bytes(work: Work) -> float:
    """Of one context token: the projected states with their norm, keys and values per layer."""
    one = work.drafter
    keys = one.num_kv_heads * one.head_dim
    return BF16 * (4 * one.hidden_size + 2 * keys * one.num_layers)


def colocated_memory(work: Work, capacity: float, *, drafters: int = 1) -> RoleMemory:
    """Both on one GPU; the head is the target's, and the two peaks do not coincide."""
    target = target_memory(work, capacity).parts
    drafter = dict(drafter_memory(work, capacity, drafters=drafters).parts)
    tokens = work.batch_tokens
    own = {f"drafter {name}": value for name, value in drafter.items()}
    own.pop("drafter embedding and head")
    own.pop("drafter states")
    activations = own.pop("drafter activations") + own.pop("drafter head chunk")
    return RoleMemory(
        role="colocated",
        parts={
            "target weights": target["weights"],
            **own,
            "states": tokens * work.state_bytes(),
            "forward or step": max(target["forward"], activations),
        },
        capacity=capacity,
    )


def roles(work: Work, machine: Machine, drafters: int) -> tuple[RoleMemory, ...]:
    capacity = machine.gpu.memory_gib * GIB
    return (
        target_memory(work, capacity),
        drafter_memory(work, capacity, drafters=drafters),
        colocated_memory(work, capacity, drafters=machine.count),
    )


def plan_memory(work: Work, machine: Machine) -> PlanReport:
    found = roles(work, machine, max(1, machine.count - 1))
    tables = tuple(
        Table(
            columns=(role.role, "GiB"),
            rows=(
                *((name, f"{value / GIB:.1f}") for name, value in role.parts.items()),
                ("reserved, fragments", f"{(role.needed - sum(role.parts.values())) / GIB:.1f}"),
                ("needed", f"{role.needed / GIB:.1f}"),
                (f"left of {role.capacity / GIB:.1f}", f"{role.margin / GIB:.1f}"),
            ),
        )
        for role in found
    )
    return PlanReport(
        kind="memory",
        title=(
            f"{machine.gpu.name}, micro-batches of {work.batch_tokens:,.0f} tokens and "
            f"{work.batch_blocks:,.0f} blocks of {work.drafter.block_size} at most"
        ),
        tables=tables,
        numbers={
            role.role: {
                "parts": dict(role.parts),
                "needed": role.needed,
                "capacity": role.capacity,
                "margin": role.margin,
                "fits": role.fits,
            }
            for role in found
        },
        conclusion=tuple(map(_verdict, found)),
        assumptions=(
            "target and drafter in bf16, masters and moments in fp32, one whole copy per GPU",
            "the drafter's fused layers keep what is dear to make again; attention keeps no scores",
            f"head and loss {work.head_chunk_rows:,} rows at a time, gradient with the forward",
            (
                f"{RESERVED_GIB:g} GiB for the context and libraries, "
                f"{FRAGMENTATION:.0%} lost to fragments"
            ),
            "an estimate: the allocator's peak of the first steps decides",
        ),
    )


def _verdict(role: RoleMemory) -> str:
    if role.fits:
        return f"{role.role}: fits, {gib(role.margin)} left"
    helps = {
        "target": "a smaller --batch-docs or --max-length, or a larger GPU",
        "drafter": "fewer --anchors-per-doc or a smaller --batch-docs",
    }.get(role.role, "separate target and drafter GPUs")
    return f"{role.role}: {gib(-role.margin)} too much; what helps: {helps}"
