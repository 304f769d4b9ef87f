"""The job protocol on the host: standard library only, Python 3.8 or newer.

Pushed as one zip archive under its content hash (`remote.archive`) and called as `python3 ARCHIVE
VERB` with one JSON request on the first line of stdin; the answer is one JSON object between the
two sentinels that the request names, so that nothing a login shell prints can be taken for it.
What is true about a job is its directory, the flock its supervisor holds, and the identity of the
machine. Time decides nothing: a silent job is a running job until the kernel says otherwise.

    <root>/<workspace>/jobs/<attempt>/   spec.json sup.py lock started ident.json beat ctl/
                                         out.log err.log progress.jsonl out.json exit.json tombstone
    <root>/<workspace>/tasks/<task>/current   the attempt and generation that own the task
    <machine>/resources/<gpu:0>               the attempt that owns a resource (`resources`)
"""

from __future__ import annotations
