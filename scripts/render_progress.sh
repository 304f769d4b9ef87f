#!/bin/sh
# Renders the repository's PROGRESS.md: the bundled qwen3.6-27b-dflash runbook, freshly initialised.
set -eu
cd "$(dirname "$0")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
${RUNBOOK:-.envs/operator/bin/runbook} init qwen3.6-27b-dflash --dir "$fresh" \
    -p store=s3://your-bucket/qwen3.6-27b-dflash >/dev/null
cp "$fresh/PROGRESS.md" PROGRESS.md
