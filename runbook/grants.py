"""What a job on a rented machine gets instead of our own keys to S3, made when it is launched.

`keys`: short-lived keys for one prefix, from the store's token service (STS) with a policy of their
own. `listing`: signed URLs of the objects below a prefix, to read them without any key. Both come
from the credentials of whoever runs `runbook`, go the way of secrets, and are kept nowhere: the
database has what was asked for, so that another operator's launch asks anew. When they end is told
to the job and its host, which is how whoever follows the job knows (`runbook.engine.renewing`).
"""

from __future__ import annotations

import base64
import json
import time
import zlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from runbook.errors import CannotStart

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LISTING = "RUNBOOK_MODEL_LISTING"
KEYS = {
    "AWS_ACCESS_KEY_ID": "AccessKeyId",
    "AWS_SECRET_ACCESS_KEY": "SecretAccessKey",
    "AWS_SESSION_TOKEN": "SessionToken",
}
ANY_ROLE = (
    "arn:aws:iam::000000000000:role/any"  # stores that are not AWS ask for one, and ignore it
)
OURS = (
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, where `runbook` is started: "
    "the host gets only what is made from them for this job."
)
SPAN = "RUNBOOK_KEYS_SPAN"
SIGNED_S = 12 * 3600
SHORTEST_ROLE_S = 3600
"""Every role allows it, also to keys that are temporary themselves."""
MANIFESTS = (".objects.json", "manifest.json")
READ = ("s3:GetObject",)
WRITE = (
    "s3:PutObject",
    "s3:DeleteObject",
    "s3:AbortMultipartUpload",
    "s3:ListMultipartUploadParts",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """What was made for one job: variables, and from when to when they hold by our clock."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    since: float = 0.0
    end: float = 0.0

    @property
    def environment(self) -> dict[str, str]:
        """For a launch: they, and when they end."""
        return {**self.values, SPAN: f"{self.since:.0f} {self.end:.0f}"} if self.values else {}


def issue(grants: Iterable[Mapping[str, Any]], given: Mapping[str, str]) -> Issued:
    """What the grants come to now. Keys among the task's own secrets come first.

    Raises:
        CannotStart: the store refuses, or has no such service.
    """
    since, ends = time.time(), []
    values: dict[str, str] = {}
    for grant in grants:
        if grant["kind"] == "keys" and "AWS_ACCESS_KEY_ID" in given:
            continue
        made, end = listing(grant) if grant["kind"] == "listing" else keys(grant)
        values |= made
        ends.append(end)
    return Issued(values=values, since=since, end=min(ends, default=0.0))


def keys(grant: Mapping[str, Any]) -> tuple[dict[str, str], float]:
    """Keys that open these prefixes alone, and when they end by themselves."""
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    places = grant["places"]
    url = ", ".join(place["url"] for place in places)
    policy = json.dumps(policy_for(places), separators=(",", ":"))
    seconds = int(grant["hours"]) * 3600
    try:
        session = boto3.Session()
        ours = session.get_credentials()
        if ours is None:
            raise CannotStart(
                f"No credentials for {url} were found on this machine.",
                hint=OURS,
            )
        client = session.client(
            "sts", endpoint_url=grant["endpoint"] or None, region_name=grant["region"] or None
        )
        if grant["role"] or grant["endpoint"] or ours.token:
            answer = _of_role(client, grant["role"] or ANY_ROLE, policy, min(seconds, 12 * 3600))
        else:
            answer = client.get_federation_token(
                Name="runbook", Policy=policy, DurationSeconds=seconds
            )
    except (BotoCoreError, ClientError, ValueError) as error:  # the last: of a wrong endpoint
        raise CannotStart(
            f"No short-lived keys for {url} could be had: {' '.join(str(error).split())[:300]}",
            hint="Name a role of yours with `key_role`, lower `key_hours`; or, of a store that "
            "issues none, give keys of your own making with AWS_SESSION_TOKEN as `secrets:`; or "
            "take the risk with `long_lived_keys: true`.",
        ) from error
    made = answer["Credentials"]
    return {name: made[key] for name, key in KEYS.items()}, made["Expiration"].timestamp()


def _of_role(client: Any, role: str, policy: str, seconds: int) -> Any:
    """For as long as asked, or for the hour that every role allows."""
    from botocore.exceptions import ClientError

    about = {"RoleArn": role, "RoleSessionName": "runbook", "Policy": policy}
    try:
        return client.assume_role(**about, DurationSeconds=seconds)
    except ClientError as error:
        if seconds <= SHORTEST_ROLE_S or "DurationSeconds" not in str(error):
            raise
        return client.assume_role(**about, DurationSeconds=SHORTEST_ROLE_S)


def policy_for(places: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """For each prefix: list it, read it, and with `write` change it."""
    statements: list[dict[str, Any]] = []
    for place in places:
        bucket, _, prefix = place["url"].removeprefix("s3://").partition("/")
        top = prefix.strip("/")
        below = [top, f"{top}/*"] if top else ["*"]  # an address may be that of one object
        arn, write = f"arn:aws:s3:::{bucket}", place["write"]
        look = ["s3:ListBucket", *(("s3:ListBucketMultipartUploads",) if write else ())]
        statements += [
            {
                "Effect": "Allow", "Action": look, "Resource": arn,
                "Condition": {"StringLike": {"s3:prefix": below}},
            },
            {
                "Effect": "Allow", "Action": [*READ, *(WRITE if write else ())],
                "Resource": [f"{arn}/{key}" for key in below],
            },
        ]  # fmt: skip
    return {"Version": "2012-10-17", "Statement": statements}


def listing(grant: Mapping[str, Any]) -> tuple[dict[str, str], float]:
    """Names, sizes, digests and signed URLs, as `remote/payloads/model_sources.py` unpacks them;
    and when these end."""
    from dflash.errors import DflashError
    from dflash.s3 import NoAccess, StoreOptions, connection, explained, split
    from dflash.s3_store import S3Store

    url = grant["url"]
    options = StoreOptions(
        endpoint=grant["endpoint"], region=grant["region"], addressing=grant["addressing"]
    )
    try:
        store = S3Store(url, options)
        there = store.listed()
        digests = _digests(store, there)
        (client, ours), (bucket, prefix) = connection(options, url), split(url)
        with explained(url):
            signed = {
                name: client.generate_presigned_url(
                    "get_object",
                    Params={"Bucket": bucket, "Key": f"{prefix}/{name}".lstrip("/")},
                    ExpiresIn=SIGNED_S,
                )
                for name in there
                if not any(part.startswith(".") for part in name.split("/"))
                and name not in MANIFESTS
            }
    except NoAccess as error:
        raise CannotStart(f"{error.message}.", hint=OURS) from error
    except DflashError as error:
        raise CannotStart(f"{error.message}.", hint=error.hint) from error
    if not signed:
        raise CannotStart(f"{url} holds no objects.", hint="Correct the address of the model.")
    files = [
        [name, there[name].size, there[name].etag, digests.get(name, ""), where]
        for name, where in sorted(signed.items())
    ]
    packed = zlib.compress(json.dumps(files).encode(), 9)
    ends = datetime.now(UTC) + timedelta(seconds=SIGNED_S)
    # A URL that was signed with temporary keys ends with them.
    ends = min(ends, getattr(ours, "_expiry_time", None) or ends)
    return {LISTING: base64.b64encode(packed).decode()}, ends.timestamp()


def _digests(store: Any, there: Mapping[str, Any]) -> dict[str, str]:
    """The SHA-256s that a manifest there claims, of files that still have their size."""
    for manifest in MANIFESTS:
        if manifest not in there:
            continue
        try:
            entries = json.loads(store.read(manifest) or b"")["files"]
            return {
                str(one["path"]): str(one.get("sha256", ""))
                for one in entries
                if one["path"] in there and there[one["path"]].size == one["size"]
            }
        except (ValueError, KeyError, TypeError):
            continue
    return {}
