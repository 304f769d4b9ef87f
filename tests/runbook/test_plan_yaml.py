"""The strict part of YAML: what surprises is an error with its place, never data."""

from __future__ import annotations

import pytest

from runbook.plan.yaml_reader import MAX_CHARACTERS, read_yaml


def told(text: str) -> list[str]:
    return [str(problem) for problem in sorted(read_yaml(text).problems)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: yes", "yes"),
        ("a: on", "on"),
        ("a: NO", "NO"),
        ("a: true", True),
        ("a: 'true'", "true"),
        ("a: 12", 12),
        ("a: 0o17", 15),
        ("a: 0x1F", 31),
        ("a: 1_000", "1_000"),
        ("a: 1:30", "1:30"),
        ("a: 3e-4", 3e-4),
        ("a: .5", 0.5),
        ("a: 2026-01-02", "2026-01-02"),
        ("a: ~", None),
        ("a:", None),
        ('a: "1"', "1"),
        ("a: |\n  x\n  y\n", "x\ny\n"),
        ("a: >-\n  x\n  y\n", "x y"),
        ("a: [1, {b: c}]", [1, {"b": "c"}]),
    ],
)
def test_values_are_those_of_yaml_1_2(text: str, value: object) -> None:
    document = read_yaml(text)
    assert document.problems == []
    assert document.data == {"a": value}
    assert type(document.data["a"]) is type(value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: 2\na: 3\n", "3:1: key `a` stands twice; the first is on line 1"),
        ("a: {b: 1, b: 2}", "1:11: key `b` stands twice; the first is on line 1"),
        ("a: &x 1", "1:4: an anchor (&x); write the value where it is needed"),
        ("a: *x", "1:4: an alias (*x); write the value out"),
        ("a: !!str 1", "1:4: a tag (tag:yaml.org,2002:str)"),
        ("a: !secret x", "1:4: a tag (!secret)"),
        ("<<: {a: 1}", "1:1: a merge key (<<)"),
        ("1: x", '1:1: key `1` is not text; write "1"'),
        ("true: x", "1:1: key `true` is not text"),
        ("? [1]\n: x", "1:3: a key that is not text"),
        ("? {a: b}\n: x", "1:3: a key that is not text"),
        ("a: 012", "1:4: 012 begins with a zero"),
        ("a: .inf", "1:4: .inf is not a finite number"),
        ("a: .nan", "1:4: .nan is not a finite number"),
        ("%YAML 1.1\n---\na: b", "2:1: a %YAML or %TAG directive"),
        ("a: 1\n---\nb: 1", "3:1: a second document"),
        ("a: [1", "1:6: not YAML: "),
        ("\ta: 1", "1:1: not YAML: "),
        ("a:\n\tb: 1", "; use spaces, not a tab"),
        ("a: \x01", "not YAML: "),
        ('a: "\\ud800"', "1:4: half of a surrogate pair"),
        ("[" * 300, "not YAML: nested deeper than 40 levels"),
        ("a: b: c", "1:5: not YAML: "),
    ],
)
def test_what_surprises_is_a_problem(text: str, problem: str) -> None:
    assert any(problem in line for line in told(text)), told(text)


def test_keys_below_a_second_key_are_no_second_ones() -> None:
    (once,) = told("a: {b: 1}\nc: 1\na: {b: 1}")
    assert once.startswith("3:1: key `a` stands twice; the first is on line 1")
    again = told("a: {b: 1}\nc: 1\na: {b: 1, b: 2}\na: {b: 1}")
    places = [line.partition(" stands twice")[0] for line in again]
    assert places == ["3:1: key `a`", "3:11: key `b`", "4:1: key `a`"]


def test_a_merge_of_an_anchor_is_named_too() -> None:
    lines = told("base: &b {x: 1}\na:\n  <<: *b\n")
    assert [line.split(":")[0] for line in lines] == ["1", "3", "3"]


def test_the_rest_is_read_after_a_problem() -> None:
    document = read_yaml("a: 1\na: 2\nb: !x 3\nc: 4\n")
    assert document.data == {"a": 1, "b": "3", "c": 4}
    assert len(document.problems) == 2


def test_places_are_those_of_keys_and_values() -> None:
    document = read_yaml("a:\n  - b: 1\n    c: 2\n")
    assert document.place(("a", 0, "c")) == (3, 8)
    assert document.place(("a", 0, "c"), key=True) == (3, 5)
    assert document.place(("a", 0, "missing")) == (2, 5)
    assert document.place(("nowhere", 3)) == (1, 1)


def test_a_huge_file_is_not_parsed() -> None:
    assert told("a" * (MAX_CHARACTERS + 1)) == [
        f"1:1: the file is larger than {MAX_CHARACTERS} characters"
    ]
