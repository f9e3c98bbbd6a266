# shellcheck shell=bash
# What the scripts of this folder share. Sourced, never run.

# The project's root, wherever the script was called from.
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Downloads and port reservations that outlive one run.
CACHE="${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/handover"
export ROOT CACHE

# Just installed by rustup, it is not yet in the PATH of this shell.
if [ -z "$(command -v cargo)" ] && [ -x "${HOME:-}/.cargo/bin/cargo" ]; then PATH="$HOME/.cargo/bin:$PATH"; fi

say() { printf '%s\n' "$*" >&2; }
die() {
  say "${0##*/}: $*"
  exit 1
}
has() { command -v "$1" >/dev/null 2>&1; }

# An absolute path of a folder that may not exist yet.
absolute() {
  case $1 in
    /*) printf '%s\n' "${1%/}" ;;
    *) printf '%s/%s\n' "$PWD" "${1%/}" ;;
  esac
}

# cmdline PID: the command line, arguments one a line; fails when there is no such process.
cmdline() {
  if [ -d /proc/self ]; then
    # A zombie has an empty command line and counts as gone.
    { tr '\0' '\n' <"/proc/$1/cmdline"; } 2>/dev/null | grep . || return 1
  else
    ps -o command= -p "$1" 2>/dev/null
  fi
}

# ours PID MARK: true when PID lives and its command line holds MARK (a path that only our process has), so that a
# recycled pid is never signalled.
ours() { [ -n "$1" ] && cmdline "$1" | grep -F -e "$2" >/dev/null; }

# await SECONDS COMMAND...: until the command succeeds; fails at the deadline.
await() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$deadline" ] || return 1
    sleep 0.1
  done
}

listening() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# free_port OWNER: a loopback port nobody listens on, reserved for the folder OWNER as long as that folder exists.
# Below the ephemeral range of the kernel, or an outgoing connection could take it while its server is being restarted.
free_port() {
  local book="$CACHE/ports" port tries=0 file
  mkdir -p "$book"
  # Reservations of folders that are gone; a day old, so that no `up` that is under way loses its own.
  find "$book" -type f -mmin +1440 2>/dev/null | while IFS= read -r file; do
    [ -d "$(cat "$file" 2>/dev/null)" ] || rm -f "$file"
  done
  while [ "$tries" -lt 500 ]; do
    tries=$((tries + 1))
    port=$((16000 + (RANDOM * 32768 + RANDOM) % 16000))
    # noclobber: creating the file is the reservation, and only one process can do it.
    (set -o noclobber && printf '%s\n' "$1" >"$book/$port") 2>/dev/null || continue
    if listening "$port"; then
      rm -f "$book/$port"
      continue
    fi
    printf '%s\n' "$port"
    return 0
  done
  die "no free port found on 127.0.0.1"
}

# release_ports OWNER
release_ports() {
  [ -d "$CACHE/ports" ] || return 0
  grep -rlxF -e "$1" "$CACHE/ports" 2>/dev/null | while IFS= read -r file; do rm -f "$file"; done || true
}

# detach LOG COMMAND...: in a session of its own, so that Ctrl-C at the terminal reaches only who has to tidy up.
# The pid is in $DETACHED.
# shellcheck disable=SC2034
detach() {
  local log=$1
  shift
  if has setsid; then
    setsid "$@" </dev/null >>"$log" 2>&1 &
  else
    nohup "$@" </dev/null >>"$log" 2>&1 &
  fi
  DETACHED=$!
}

# The browser that the tests of the web page drive.
chromium_bin() {
  local name
  for name in "${HANDOVER_TEST_CHROMIUM:-}" chromium chromium-browser google-chrome; do
    if [ -n "$name" ] && has "$name"; then
      command -v "$name"
      return 0
    fi
  done
  return 1
}
