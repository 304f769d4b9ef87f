#!/bin/sh
# The main job, end to end, in ./demo on this machine. Run it again at any time: it goes on where
# it stands, adopts what still runs, and does only what is missing.
set -eu
export PATH="$ENVS/operator/bin:$PATH"

set -- -p "envs=$ENVS" -p "engine=$ENGINE"
[ -z "${TORCH_INDEX:-}" ] || set -- "$@" -p "torch_index=$TORCH_INDEX"
source=demo
[ ! -e demo/runbook.yaml ] || source=
runbook init $source --dir demo "$@"
runbook -w demo host list | grep -q '^box ' || runbook -w demo host bind box local
runbook -w demo verify --redo >/dev/null
runbook -w demo retry --all-failed >/dev/null

if [ -t 1 ] && [ -t 0 ]; then
    runbook -w demo tui --run
else
    runbook -w demo run
fi
runbook -w demo results
