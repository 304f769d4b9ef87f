"""A Qwen3-shaped model that says one known text, thought included, for servers to serve.

Attention and MLP write nothing into the residual stream, so the last hidden state is the last
token's embedding, and a row of the output layer names the token that follows it. Each token
therefore decides the next one: a script must not use a token twice. The generation prompt ends in
one newline, which starts the thought; with thinking off it ends in two, which start the answer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tokenizers import Tokenizer

THOUGHT = " Let me add these numbers here."
ANSWER = "\n\nThe sum is four!"
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKS = ("<think>", "</think>")  # in Qwen3's vocabulary, too, they are no special tokens
WIDTH = 384  # a dimension for each token of the vocabulary, and a few to spare
WORDS = r" ?\p{L}+|\n+| ?[^\s\p{L}]+|\s+"

TEMPLATE = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' and message.reasoning_content is string %}
        {{- '<think>' + message.reasoning_content + '</think>' }}
    {%- endif %}
    {{- message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}""".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyModel:
    """A model folder and what it will say."""

    path: Path
    completion: str
    output_ids: tuple[int, ...]
    unthinking: str
    unthinking_ids: tuple[int, ...]


def make_toy_model(path: Path) -> ToyModel:
    """Writes the folder."""
    path.mkdir(parents=True)
    tokenizer = _tokenizer()
    completion = "<think>" + THOUGHT + "</think>" + ANSWER + "<|im_end|>"
    ids = tokenizer.encode(completion).ids
    script = [*tokenizer.encode("\n").ids, *ids]
    assert len(set(script)) == len(script), "a token appears twice in the script"
    assert tokenizer.get_vocab_size() <= WIDTH
    tokenizer.save(str(path / "tokenizer.json"))
    _write_configs(path, tokenizer)
    _write_weights(path, script)
    answer = tokenizer.encode("<think>" + THOUGHT + "</think>\n\n").ids
    return ToyModel(
        path=path,
        completion=completion,
        output_ids=tuple(ids),
        unthinking=ANSWER.removeprefix("\n\n") + "<|im_end|>",
        unthinking_ids=tuple(ids[len(answer) :]),
    )


def _tokenizer() -> Tokenizer:
    """Byte-level BPE in which each word of the script is one token."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=WIDTH - len(SPECIALS) - len(MARKS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([THOUGHT, ANSWER, "user\n", "assistant\n"] * 8, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKS])
    return tokenizer


def _write_configs(path: Path, tokenizer: Tokenizer) -> None:
    end, stop = tokenizer.token_to_id("<|endoftext|>"), tokenizer.token_to_id("<|im_end|>")
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": WIDTH,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "vocab_size": WIDTH,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "eos_token_id": stop,
        "pad_token_id": end,
        "dtype": "float32",
    }
    of_tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    files = {
        "config.json": config,
        "tokenizer_config.json": of_tokenizer,
        "generation_config.json": {"eos_token_id": [stop, end], "do_sample": False},
    }
    for name, value in files.items():
        (path / name).write_text(json.dumps(value, indent=1), encoding="utf-8")


def _write_weights(path: Path, script: list[int]) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    random = np.random.default_rng(3)

    def noise(*shape: int) -> np.ndarray:
        return random.normal(0, 0.02, shape).astype(np.float32)

    def ones(size: int) -> np.ndarray:
        return np.ones(size, np.float32)

    head = np.zeros((WIDTH, WIDTH), np.float32)
    for before, after in pairwise(script):
        head[after, before] = 1.0
    weights = {
        "model.embed_tokens.weight": np.eye(WIDTH, dtype=np.float32),
        "model.norm.weight": ones(WIDTH),
        "lm_head.weight": head,
    }
    for layer in ("model.layers.0.", "model.layers.1."):
        weights |= {
            layer + "input_layernorm.weight": ones(WIDTH),
            layer + "post_attention_layernorm.weight": ones(WIDTH),
            layer + "self_attn.q_proj.weight": noise(64, WIDTH),
            layer + "self_attn.k_proj.weight": noise(32, WIDTH),
            layer + "self_attn.v_proj.weight": noise(32, WIDTH),
            layer + "self_attn.o_proj.weight": np.zeros((WIDTH, 64), np.float32),
            layer + "self_attn.q_norm.weight": ones(32),
            layer + "self_attn.k_norm.weight": ones(32),
            layer + "mlp.gate_proj.weight": noise(32, WIDTH),
            layer + "mlp.up_proj.weight": noise(32, WIDTH),
            layer + "mlp.down_proj.weight": np.zeros((WIDTH, 32), np.float32),
        }
    save_file(weights, str(path / "model.safetensors"), metadata={"format": "pt"})
