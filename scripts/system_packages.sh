#!/bin/sh
# What the tests need from Debian: a real sshd, network namespaces, a terminal to drive the UI in.
set -eu
missing=""
need() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || missing="$missing $2"; }
need sshd openssh-server
need ssh openssh-client
need ip iproute2
need iptables iptables
need tmux tmux
need ps procps
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    apt-get update -qq
    # shellcheck disable=SC2086  # one word per package
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
    exit 0
fi
echo "The tests need these Debian packages:$missing. Install them as root: apt-get install$missing" >&2
[ -z "${CI:-}" ]
