"""Where a model comes from: a folder, or files behind HTTP (a hub, or an S3 prefix by signed URLs).

Standard library only, Python 3.8 or later: it goes to hosts with `model_copy`.
"""

from __future__ import annotations

import base64
import fnmatch
import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from remote.payloads.model_web import TIMEOUT_S, NoRange, Web
from remote.payloads.records import PARTIAL, Refused

MANIFEST = "manifest.json"
LISTING = "RUNBOOK_MODEL_LISTING"
"""The variable with the signed URLs of an S3 prefix, as `unpack` reads it."""
HUB = "https://huggingface.co"
OTHER_WEIGHTS = ("*.bin", "*.pth", "*.pt", "*.gguf", "*.onnx", "*.h5", "*.msgpack", "original/*")
"""The same weights in formats that nothing here reads, where safetensors are there."""
TRIES = 6


class Ended(Refused):
    """The signed URLs are past their end; with new ones the same command goes on."""


class Source(NamedTuple):
    """One file of the model. The sha256 is the source's own claim, or empty; the stamp changes when
    the content may have."""

    path: str
    size: int
    stamp: str
    sha256: str
    url: str = ""


class Model(NamedTuple):
    """All its files, and how a range of one is read into a buffer."""

    label: str
    files: List[Source]
    read: Callable[[Source, int, memoryview], None]
    folder: Optional[Path] = None
    close: Callable[[], None] = lambda: None


def open_model(where: str) -> Model:
    """What stands at a path, `hub:ID[@REVISION]` or an `s3://` address."""
    if where.startswith("hub:"):
        return hub_model(where)
    if where.startswith("s3://"):
        return listed_model(where)
    folder = Path(where)
    return Model(str(folder), read_folder(folder), _from_folder(folder), folder)


# -- folders ---------------------------------------------------------------------------------------


def read_manifest(folder: Path) -> Dict[str, Any]:
    """A folder's manifest; an empty one when it has none that can be read."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("files"), list) else {}


def files_below(folder: Path) -> List[str]:
    """Relative names; hidden ones and manifests are not part of a model. Links are followed:
    a hub cache consists of them."""
    names: List[str] = []
    for base, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        kept = [name for name in files if not name.startswith(".") and name != MANIFEST]
        names += [os.path.relpath(os.path.join(base, name), folder) for name in kept]
    return sorted(names)


def read_folder(folder: Path) -> List[Source]:
    """The model's files, with the hashes that its manifest claims."""
    if not folder.is_dir():
        raise Refused("%s is not a folder" % folder, "fetch the model first, or correct --source")
    claims = {str(f.get("path")): f for f in read_manifest(folder).get("files", [])}
    found = []
    for name in files_below(folder):
        if name.endswith(PARTIAL):
            raise Refused(
                "%s is still being written: %s" % (folder, name), "wait for it to be whole"
            )
        stat = (folder / name).stat()
        claim = claims.pop(name, {})
        if claim and claim.get("size") != stat.st_size:
            raise Refused(
                "%s has %d bytes, its manifest says %s"
                % (folder / name, stat.st_size, claim.get("size")),
                "fetch the model again",
            )
        stamp, digest = str(stat.st_mtime_ns), str(claim.get("sha256", ""))
        found.append(Source(name, stat.st_size, stamp, digest))
    if claims or not found:
        what = ", ".join(sorted(claims)[:5]) or "any file"
        raise Refused("%s lacks %s" % (folder, what), "fetch the model again")
    return found


def _from_folder(folder: Path) -> Callable[[Source, int, memoryview], None]:
    def read(file: Source, start: int, view: memoryview) -> None:
        # A descriptor for each range: read-ahead of the kernel follows one descriptor's reads.
        handle = os.open(folder / file.path, os.O_RDONLY)
        try:
            while view:
                got = os.preadv(handle, [view], start)
                if not got:
                    raise Refused(
                        "%s shrank while it was read" % file.path, "stop whatever writes to it"
                    )
                start, view = start + got, view[got:]
        finally:
            os.close(handle)

    return read


# -- HTTP ------------------------------------------------------------------------------------------


def _from_web(
    web: Web, headers: Dict[str, str], hint: str, signed: Optional[_Signed] = None
) -> Callable[[Source, int, memoryview], None]:
    tags: Dict[str, str] = {}

    def read(file: Source, start: int, view: memoryview) -> None:
        for attempt in range(TRIES):
            url = signed.now(file).url if signed else file.url
            try:
                tag = web.fill(url, headers, start, view)
                if signed and tags.setdefault(file.path, tag) != tag:
                    raise Refused(
                        "%s was written anew while it was copied" % file.path,
                        "run the task again: it lists what is there now",
                    )
                return
            except NoRange as other:
                raise Refused(
                    "%s: the server sends no ranges (%s)" % (file.path, other),
                    "download it to a folder first",
                ) from None
            except urllib.error.HTTPError as error:
                said = error.read().lower()
                error.close()
                again = error.code >= 500 or error.code in (408, 429)
                if signed and error.code in (400, 401, 403):
                    again = signed.now(file).url != url  # new ones came while it was asked
                    if not again and (b"expired" in said or signed.ended()):
                        raise Ended("%s: its signed URL has run out" % file.path, hint) from None
                if not again:
                    raise Refused("%s: the server says %s" % (file.path, error), hint) from None
                problem: Exception = error
            except (OSError, EOFError, http.client.HTTPException) as error:
                problem = error
            if attempt == TRIES - 1:
                raise Refused(
                    "%s does not come: %s" % (file.path, problem), "run it again: what came is kept"
                )
            time.sleep(0.25 * 2**attempt)

    return read


class _Signed:
    """The URLs of a listing: those of the launch, or newer ones that were handed to the job."""

    def __init__(self, packed: str) -> None:
        self._end = float((os.environ.get("RUNBOOK_KEYS_SPAN") or "0 inf").split()[-1])
        self._file = os.path.join(os.environ.get("RUNBOOK_JOB_DIR", ""), "ctl", "keys")
        self._stamp: Any = None
        self._urls: Dict[str, str] = {}
        self.files = unpack(packed)

    def now(self, file: Source) -> Source:
        """The file with its newest URL."""
        try:
            info = os.stat(self._file)
            if (info.st_ino, info.st_mtime_ns) != self._stamp:
                with open(self._file, encoding="utf-8") as handle:
                    handed = json.load(handle)
                self._urls = {one.path: one.url for one in unpack(handed["values"][LISTING])}
                self._end, self._stamp = handed["end"], (info.st_ino, info.st_mtime_ns)
        except (OSError, ValueError, KeyError):
            pass
        return file._replace(url=self._urls.get(file.path, file.url))

    def ended(self) -> bool:
        """Whether those that we know are past their end."""
        return time.time() >= self._end


def listed_model(where: str) -> Model:
    """An S3 prefix by the URLs that the operator's side has signed: no key is on this host."""
    packed = os.environ.get(LISTING, "")
    if not packed:
        raise Refused("%s: no listing of it came with the job" % where, "start it with `runbook`")
    signed = _Signed(packed)
    hint = "run the task again: it signs fresh URLs"
    web = Web()
    return Model(where, signed.files, _from_web(web, {}, hint, signed), None, web.close)


def unpack(packed: str) -> List[Source]:
    """The files of a listing: a row for each, as JSON, deflated, in base64."""
    return [Source(*row) for row in json.loads(zlib.decompress(base64.b64decode(packed)))]


def hub_model(where: str) -> Model:
    """A model of a hub at one commit; HF_ENDPOINT and HF_TOKEN as everywhere."""
    name, _, revision = where[len("hub:") :].partition("@")
    top = os.environ.get("HF_ENDPOINT", HUB).rstrip("/")
    token = os.environ.get("HF_TOKEN", "")
    headers = {"Authorization": "Bearer " + token} if token else {}
    about = _hub_json(
        "%s/api/models/%s/revision/%s" % (top, name, _quoted(revision or "main")), headers, where
    )
    commit = str(about["sha"])
    tree = _hub_json("%s/api/models/%s/tree/%s?recursive=1" % (top, name, commit), headers, where)
    found = []
    for entry in tree:
        path, lfs = str(entry["path"]), entry.get("lfs") or {}
        if entry["type"] != "file" or any(part.startswith(".") for part in path.split("/")):
            continue
        url = "%s/%s/resolve/%s/%s" % (top, name, commit, _quoted(path))
        stamp = str(lfs.get("oid") or entry.get("oid"))
        found.append(Source(path, int(entry["size"]), stamp, str(lfs.get("oid", "")), url))
    if any(file.path.endswith(".safetensors") for file in found):
        found = [f for f in found if not any(fnmatch.fnmatch(f.path, p) for p in OTHER_WEIGHTS)]
    if not found:
        raise Refused("%s holds no files" % where, "correct the name or the revision")
    hint = "check HF_TOKEN and that its owner may read %s" % name
    web = Web()
    label = "hub:%s@%s" % (name, commit)
    return Model(label, found, _from_web(web, headers, hint), None, web.close)


def _quoted(path: str) -> str:
    return urllib.parse.quote(path, safe="/")


class _KeepToken(urllib.request.HTTPRedirectHandler):
    """A hub's token is for the hub, not for who it sends us to."""

    def redirect_request(self, req: Any, *args: Any) -> Any:
        new = super().redirect_request(req, *args)
        if new is not None and urllib.parse.urlsplit(new.full_url)[:2] != (req.type, req.host):
            new.remove_header("Authorization")
        return new


def _hub_json(url: str, headers: Dict[str, str], where: str) -> Any:
    """An answer of the hub's API; lists of several pages are put together."""
    found: List[Any] = []
    while True:
        try:
            asked = urllib.request.Request(url, headers=headers)  # noqa: S310
            opener = urllib.request.build_opener(_KeepToken)
            with opener.open(asked, timeout=TIMEOUT_S) as answer:
                value, link = json.load(answer), answer.headers.get("Link", "")
        except urllib.error.HTTPError as error:
            error.close()
            hint = "correct the name or the revision" if error.code == 404 else "check HF_TOKEN"
            raise Refused("%s: the hub says %s" % (where, error), hint) from None
        except (OSError, ValueError) as error:
            raise Refused(
                "%s: the hub cannot be read: %s" % (where, error), "check HF_ENDPOINT and the line"
            ) from None
        if not isinstance(value, list):
            return value
        found += value
        if 'rel="next"' not in link:
            return found
        url = link[link.index("<") + 1 : link.index(">")]
