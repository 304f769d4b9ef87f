"""Keys that are handed to a job while it runs.

Those that it begins with are in its environment, with when they were made and when they end in
`RUNBOOK_KEYS_SPAN`; later ones come as a file in the job's directory, which whoever follows the job
replaces in time. Every request is signed with the newest. Without that variable nothing of this
applies, and keys come from where every S3 tool has them. Standard library only, but for what
botocore is given.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SPAN = "RUNBOOK_KEYS_SPAN"
JOB = "RUNBOOK_JOB_DIR"
FILE = "ctl/keys"
NAMES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
LOOK_S = 0.5
LATE = 5 / 6
"""Of their time; who hands out new ones does so earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """One set of keys, and from when to when it holds by the clock of who made it."""

    since: float
    end: float
    values: Mapping[str, str]


def newest() -> Keys | None:
    """The keys of this job as they are now; None where none are handed out."""
    span = os.environ.get(SPAN, "").split()
    if len(span) != 2:
        return None
    given = {name: os.environ[name] for name in NAMES if name in os.environ}
    first = Keys(since=float(span[0]), end=float(span[1]), values=given)
    try:
        found = json.loads((Path(os.environ.get(JOB, "")) / FILE).read_bytes())
        return Keys(
            since=float(found["since"]),
            end=float(found["end"]),
            values={str(name): str(value) for name, value in found["values"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return first


def have_ended(there: float = 0.0) -> bool:
    """Whether keys that were handed to this job are past their end, by our clock or the store's."""
    keys = newest()
    return keys is not None and max(time.time(), there) >= keys.end


def told(*, refused: bool) -> str:
    """For a line of progress: until when they hold, or that they are dead; empty without any."""
    keys = newest()
    if keys is None:
        return ""
    return "expired" if refused else time.strftime("until %Y-%m-%d %H:%MZ", time.gmtime(keys.end))


def late() -> str:
    """What to tell when their end is near and nobody brought others."""
    keys = newest()
    if keys is None or time.time() < keys.since + LATE * (keys.end - keys.since):
        return ""
    until = told(refused=False)
    return f"the keys for the store hold {until}: let `runbook run` or `runbook watch` bring others"


def wait_for_others(
    before: Keys | None, *, within_s: float, wait: Callable[[float], object],
    stop: Callable[[], bool] = lambda: False,
) -> bool:  # fmt: skip
    """Wait until keys other than `before` are here, for so long at most or until `stop`."""
    until = time.monotonic() + within_s
    while not stop():
        if newest() != before:
            return True
        left = until - time.monotonic()
        if left <= 0:
            return False
        wait(min(LOOK_S, left))
    return False


def boto_session() -> Any:
    """A botocore session that takes its keys from here, if any are handed to this job. boto3 would
    add nothing but 20 ms."""
    from botocore.credentials import CredentialProvider, Credentials, ReadOnlyCredentials
    from botocore.session import get_session

    class Handed(Credentials):
        """Looks again for every signature."""

        def get_frozen_credentials(self) -> Any:
            return ReadOnlyCredentials(*values())

    class Provider(CredentialProvider):
        """The first of the usual chain."""

        METHOD = CANONICAL_NAME = "runbook"

        def load(self) -> Any:
            key, secret, token = values()
            return Handed(key, secret, token, self.METHOD) if key and secret else None

    def values() -> list[str]:
        keys = newest()
        return [keys.values.get(name, "") if keys is not None else "" for name in NAMES]

    session = get_session()
    if newest() is not None:
        session.get_component("credential_provider").insert_before("env", Provider())
    return session
