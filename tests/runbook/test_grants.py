"""Keys for a job: what is wrong with the operator's own setting is told, and is no bug of ours."""

from __future__ import annotations

import pytest

from runbook.errors import CannotStart
from runbook.grants import issue

PLACE = {"url": "s3://bucket/x", "write": True}
KEYS = {"kind": "keys", "places": [PLACE], "region": "us-east-1", "role": "", "hours": 1}


@pytest.mark.parametrize(
    ("profile", "endpoint", "said"),
    [("nobody-has-this", "", "nobody-has-this"), ("", "no address", "no address")],
    ids=["profile", "endpoint"],
)
def test_a_wrong_setting_is_told(
    monkeypatch: pytest.MonkeyPatch, profile: str, endpoint: str, said: str
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    if profile:
        monkeypatch.setenv("AWS_PROFILE", profile)
    with pytest.raises(CannotStart, match=said):
        issue([{**KEYS, "endpoint": endpoint}], {})
