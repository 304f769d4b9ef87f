"""The table of digests behaves as a dict does, in a fifth of its memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dflash.digests import DigestTable

DIGESTS = st.one_of(st.integers(0, 40), st.integers(0, 2**64 - 1))


@given(st.lists(st.tuples(DIGESTS, st.integers(0, 254)), max_size=200))
def test_it_remembers_what_a_dict_remembers(pairs):
    table, wanted = DigestTable(), {}
    for digest, value in pairs:
        assert table.add(digest, value) == wanted.get(digest)
        wanted.setdefault(digest, value)
    assert len(table) == len(wanted)


def test_it_grows_and_loses_nothing():
    table = DigestTable()
    digests = [n * 0x9E3779B97F4A7C15 % 2**64 for n in range(20_000)]
    # All with the same low bits: the places that they want are the same.
    digests += [n << 40 for n in range(1, 300)]
    for digest in digests:
        assert table.add(digest, digest % 255) is None
    assert [table.add(digest) for digest in digests] == [digest % 255 for digest in digests]
