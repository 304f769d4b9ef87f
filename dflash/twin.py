"""A tiktoken twin of a Hugging Face BPE tokenizer: the same ids, several times faster.

Only tokenizers that are byte-level BPE with one pattern have one; `twin_of` says why another has
not. Special and other added tokens are cut out of the text first, then each piece is normalised,
as Hugging Face does. A text that the twin cannot be sure of comes back as None.
"""

from __future__ import annotations

import itertools
import unicodedata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Mapping

    import numpy as np

    Normalize = Callable[[str], str]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SPACES = r"|\s+(?!\S)|\s+"
PROBES = (
    "The quick brown fox jumps over 13 lazy dogs, 2.5 times; it's HE'LL we'Ve 'ſ don't.",
    "  two  three   \t tabs\t\t and\r\nlines\n\n\n   \n end  \u00a0\u2003x\u3000y\u0085z\u200b ",
    "def f(x):\n    return x**2 + 1_000  # größer als «0»\n\n\tif x != None and y >= 3:\n",
    "日本語と中文、한국어 그리고 한글 ไทย हिन्दी ক্ষ தமிழ் العربية עברית Ελληνικά Кириллица",
    "e\u0301 o\u0308\u0323 A\u030a \u1100\u1161\u11a8 \u212b \u2126 \ufb01 \u0958 \u0344 =\u0338",
    "🙂👩‍👩‍👧‍👦🇩🇪✅️ 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ①②③ ½ ٣٤ Ⅷ 1234567890",
    '{"a": [1, 2.0e-10, null], "b\\n": "\\u00e9"} <tool_call> <a href="x?y=1&z=%20">',
    "\u0000\u0007\u001b[31mred\u001b[0m \ufeff\ufffd \U0010ffff",
)
"""Held against the original once per load: another dialect of patterns shows here."""


class NoTwin(Exception):
    """This tokenizer has no twin, and why."""


class Twin:
    """`encode` gives the ids of the original, or None where the original has to be asked."""

    def __init__(
        self,
        encoding: Any,
        ids: np.ndarray,
        ranks: list[int],
        added: Mapping[str, int],
        pattern: re.Pattern[str],
        normalize: Normalize | None,
    ) -> None:
        import numpy as np

        self._encoding, self._ids, self._pattern = encoding, ids, pattern
        self._numbers = {text: np.array([n], dtype=np.int32) for text, n in added.items()}
        self._normalize = normalize
        made = np.array(ranks)
        # Where ranks are ids already, looking each one up would change nothing.
        self._same = bool((ids[made] == made).all())
        self._gaps = bool((ids[made] < 0).any())

    def encode(self, text: str, *, added: bool) -> np.ndarray | None:
        """Ids [n] int32; with `added`, added tokens in the text are tokens, else plain text."""
        import numpy as np

        # tiktoken can look for them itself, and then takes a third longer.
        pieces = self._pattern.split(text) if added else [text]
        parts = []
        for place, piece in enumerate(pieces):
            if place % 2:
                parts.append(self._numbers[piece])
            elif piece:
                found = self._plain(piece)
                if found is None:
                    return None
                parts.append(found)
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)

    def _plain(self, text: str) -> np.ndarray | None:
        import numpy as np

        if self._normalize is not None and not text.isascii():
            # By the original's own normaliser: its Unicode tables are older than Python's.
            same = unicodedata.is_normalized("NFC", text)
            text = text if same else self._normalize(text)
        ranks = self._encoding.encode_to_numpy(text, disallowed_special=())
        if self._same:
            return ranks.view(np.int32)
        found: np.ndarray = self._ids[ranks]
        return None if self._gaps and (found < 0).any() else found


def twin_of(
    value: Mapping[str, Any],
    pattern: re.Pattern[str],
    original: Callable[[str], list[int]],
    normalize: Normalize,
) -> Twin:
    """The twin of a parsed tokenizer.json, proved on the probes; or NoTwin with the reason.

    Args:
        pattern: Splits a text at its added tokens, each in a group.
        original: The ids that Hugging Face gives.
        normalize: Its normaliser, if it has one.
    """
    added = _added(value)
    model, ranks = value["model"], _ranks(value["model"], added)
    split = _split_pattern(value.get("pre_tokenizer"))
    normalizer = value.get("normalizer")
    if normalizer is not None and normalizer != {"type": "NFC"}:
        raise NoTwin(f"its normalizer is {normalizer.get('type')}")
    steps = None if normalizer is None else normalize
    twin = _build(split, ranks, model["vocab"], added, pattern, steps)
    probes = [*PROBES, "".join(f"x{content} \u0338y" for content in added)]
    for probe in probes:
        found = twin.encode(probe, added=True)
        if found is not None and found.tolist() != original(probe):
            raise NoTwin(f"it gives other ids for {probe[:40]!r}")
    return twin


def _build(
    split: str,
    ranks: dict[bytes, int],
    vocab: Mapping[str, int],
    added: Mapping[str, int],
    pattern: re.Pattern[str],
    normalize: Normalize | None,
) -> Twin:
    import numpy as np
    import tiktoken

    names = {raw: vocab.get(_shown(raw), -1) for raw in ranks}  # -1: a byte without a token
    if min(names.values()) >= 0 and _ordered(ranks, names):
        ranks = names  # the vocabulary is in the order of its merges: its ids serve as ranks
    ids = np.full(max(ranks.values()) + 1, -1, dtype=np.int32)
    for raw, rank in ranks.items():
        ids[rank] = names[raw]
    # Added tokens are cut out before: tiktoken never sees one.
    encoding = tiktoken.Encoding("twin", pat_str=split, mergeable_ranks=ranks, special_tokens={})
    return Twin(encoding, ids, list(ranks.values()), added, pattern, normalize)


def _ordered(ranks: Mapping[bytes, int], names: Mapping[bytes, int]) -> bool:
    by_rank = [names[raw] for raw in sorted(ranks, key=lambda raw: ranks[raw]) if len(raw) > 1]
    return all(a < b for a, b in itertools.pairwise(by_rank))


def _added(value: Mapping[str, Any]) -> dict[str, int]:
    tokens = value.get("added_tokens") or []
    for token in tokens:
        if token["lstrip"] or token["rstrip"] or token["single_word"] or token["normalized"]:
            raise NoTwin(f"its added token {token['content']!r} takes its surroundings along")
    return {token["content"]: int(token["id"]) for token in tokens}


def _ranks(model: Mapping[str, Any], added: Mapping[str, int]) -> dict[bytes, int]:
    """Every token's bytes with the place of the first merge that makes it; bytes come first."""
    if model.get("type") != "BPE":
        raise NoTwin(f"its model is {model.get('type')}, not BPE")
    for key in ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                "byte_fallback"):  # fmt: skip
        if model.get(key):
            raise NoTwin(f"its model has {key}")
    ranks = {bytes([number]): number for number in range(256)}
    for number, merge in enumerate(model["merges"]):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        ranks.setdefault(b"".join(map(_raw, pair)), 256 + number)
    lost = sum(token not in added and _raw(token) not in ranks for token in model["vocab"])
    if lost and model.get("ignore_merges"):  # else the original can never make them either
        raise NoTwin(f"{lost} of its tokens come from no merge")
    return ranks


def _split_pattern(pre: Mapping[str, Any] | None) -> str:
    """The one pattern that cuts a text into words."""
    steps = (pre or {}).get("pretokenizers") or [pre or {"type": "none"}]
    kinds = [step["type"] for step in steps]
    level = steps[-1]
    if kinds[-1] != "ByteLevel" or level.get("add_prefix_space"):
        raise NoTwin(f"its pre-tokenizer is {' + '.join(kinds)}, not byte-level")
    if kinds == ["ByteLevel"] and level.get("use_regex", True):
        return _grouped(GPT2)
    regex = steps[0].get("pattern", {}).get("Regex")
    plain = steps[0].get("behavior") == "Isolated" and not steps[0].get("invert")
    if kinds != ["Split", "ByteLevel"] or regex is None or not plain or level["use_regex"]:
        raise NoTwin(f"its pre-tokenizer is {' + '.join(kinds)}, not one pattern")
    return _grouped(str(regex))


def _grouped(pattern: str) -> str:
    """What comes before the only look-ahead as one group, which compiles to one automaton."""
    head = pattern.removesuffix(SPACES)
    return pattern if head == pattern or "(?!" in head or "(?=" in head else f"(?:{head}){SPACES}"


def _letters() -> dict[str, int]:
    """The printable letter that stands for each byte in a vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [number for number in range(256) if number not in plain]
    letters = {chr(number): number for number in plain}
    return letters | {chr(256 + place): number for place, number in enumerate(other)}


BYTE_OF = _letters()
LETTER_OF = {number: letter for letter, number in BYTE_OF.items()}


def _raw(token: str) -> bytes:
    try:
        return bytes(BYTE_OF[letter] for letter in token)
    except KeyError:
        raise NoTwin(f"its token {token!r} is not byte-level") from None


def _shown(raw: bytes) -> str:
    return "".join(LETTER_OF[number] for number in raw)
