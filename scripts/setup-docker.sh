#!/bin/sh
# Make sure that a Docker engine answers on this machine: install it where that may be done, start it where it does not run.
# Quick and silent where all is there. Also installs mmdebstrap, but only where no image can be pulled.
set -eu

# Root writes it: in /tmp another user could have put a link in its place.
LOG=/var/log/vcluster-dockerd.log

say() { echo "setup-docker: $*" >&2; }

give_up() {
  say "$1"
  exit 3
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    give_up "this needs root, and there is no sudo: run as root: $*"
  fi
}

answers() { timeout 10 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

install_packages() {
  command -v apt-get >/dev/null || give_up "install Docker by hand (https://docs.docker.com/engine/install/), then run this again"
  say "installing $*"
  # A fresh machine has no package lists, or lists of packages that are gone.
  as_root apt-get -qq update || say "the package lists could not all be renewed; trying with what is there"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@" >/dev/null
}

# dockerd leaves its pid file when it is killed. Where another process has that number since, it takes itself for
# running and refuses to start; containerd's file beside it, the same.
forget_dead_engine() {
  for file in /var/run/docker.pid /var/run/docker/containerd/containerd.pid; do
    name=$(basename "$file" .pid)
    pid=$(as_root cat "$file" 2>/dev/null) || continue
    case $(cat "/proc/$pid/comm" 2>/dev/null) in
      "$name" | "${name}d") ;;
      *) as_root rm -f "$file" ;;
    esac
  done
}

start_engine() {
  if [ -d /run/systemd/system ]; then
    as_root systemctl start docker
  else
    forget_dead_engine
    say "starting dockerd (no systemd here; its log is $LOG)"
    as_root sh -c "setsid dockerd >>'$LOG' 2>&1 </dev/null &"
  fi
  end=$(($(date +%s) + 30))
  until answers; do
    if [ "$(date +%s)" -ge "$end" ]; then
      as_root docker version >/dev/null 2>&1 && give_up "Docker runs, but not for you: sudo usermod -aG docker $(id -un), then log in again"
      as_root tail -n 5 "$LOG" >&2 || true
      give_up "dockerd did not answer within 30 s"
    fi
    sleep 0.1
  done
}

can_pull() { timeout 60 docker pull --quiet debian:bookworm-slim >/dev/null 2>&1; }

if ! answers; then
  case ${DOCKER_HOST-} in
    '' | unix:///var/run/docker.sock) ;;
    *) give_up "no Docker engine answers at DOCKER_HOST=$DOCKER_HOST: start that one, or unset DOCKER_HOST" ;;
  esac
  [ "$(uname -s)" = Linux ] || give_up "start Docker Desktop (or another engine), then run this again"
  command -v dockerd >/dev/null || install_packages docker.io iptables
  # Newer Debian has the client in a package of its own.
  command -v docker >/dev/null || install_packages docker-cli
  start_engine
fi

if ! command -v mmdebstrap >/dev/null && command -v apt-get >/dev/null && ! can_pull; then
  say "no image can be pulled here, so they will be made from Debian's packages"
  install_packages mmdebstrap debian-archive-keyring
fi

# vcluster asks it how a host is reached; only the slimmest containers lack it.
command -v ssh >/dev/null || install_packages openssh-client
