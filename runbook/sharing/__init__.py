"""Where a state snapshot is kept for another machine: a file or an S3 object, written only if
nobody else wrote first. Only `s3_store` imports boto3, and only when an S3 address is used."""

from __future__ import annotations
