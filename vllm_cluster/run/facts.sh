# What a host is, in sections that start with "@@name". Changes nothing. Plain POSIX sh.
# Arguments: the addresses of the peers (one word, comma separated), then paths that must exist, the model cache first.
peers=$1
shift
LC_ALL=C
export LC_ALL
PATH=$PATH:/usr/sbin:/sbin:/usr/local/bin
section() { printf '\n@@%s\n' "$1"; }

section machine
cat /etc/machine-id 2>/dev/null || cat /var/lib/dbus/machine-id 2>/dev/null
section hostname
uname -n
section clock
date +%s
section memory
awk '/^MemTotal:/ { printf "%.0f\n", $2 * 1024 }' /proc/meminfo
section nics
ip -j addr 2>/dev/null
section routes
IFS=,
for peer in $peers; do
  printf '%s %s\n' "$peer" "$(ip -o route get "$peer" 2>/dev/null | sed -n 's/.* dev \([^ ]*\).*/\1/p;s/^local .*/lo/p' | head -n 1)"
done
unset IFS
section listening
awk '$4 == "0A" { n = split($2, part, ":"); print part[n] }' /proc/net/tcp /proc/net/tcp6 2>/dev/null | sort -u
section hcas
for port in /sys/class/infiniband/*/ports/*; do
  [ -e "$port/state" ] || continue
  device=${port%/ports/*}
  verbs=$(for node in "$device"/device/infiniband_verbs/uverbs*; do
    [ -e "$node" ] && printf '/dev/infiniband/%s,' "${node##*/}"
  done)
  printf '%s|%s|%s|%s|%s|%s\n' "${device##*/}" "${port##*/}" "$(cat "$port/state")" \
    "$(cat "$port/link_layer" 2>/dev/null)" "$(cat "$port/rate" 2>/dev/null)" "$verbs"
done
section gpus
if command -v nvidia-smi >/dev/null 2>&1; then
  timeout 30 nvidia-smi --query-gpu=index,uuid,name,memory.total --format=csv,noheader,nounits 2>/dev/null
fi
section slots
cat /etc/vcluster/slots 2>/dev/null
section missing
for path in "$@"; do
  [ -e "$path" ] || printf '%s\n' "$path"
done
section cdi
for spec in /etc/cdi/*.yaml /etc/cdi/*.json /var/run/cdi/*.yaml /var/run/cdi/*.json; do
  [ -e "$spec" ] && grep -hoE '"?kind"?: *"?[A-Za-z0-9./-]+' "$spec" | head -n 1
done
section docker
timeout 20 docker version --format '{{json .Server}}' 2>/dev/null
section dockerinfo
info=$(timeout 20 docker info --format '{"Root":{{json .DockerRootDir}},"Runtimes":{{json .Runtimes}}}' 2>&1 | tail -n 5)
printf '%s\n' "$info"
root=$(printf '%s\n' "$info" | sed -n 's/^{"Root":"\([^"]*\)".*/\1/p')
section disks
for path in "${root:-/var/lib/docker}" "${1:-/}" /tmp; do
  at=$path
  while [ ! -e "$at" ] && [ "$at" != / ]; do at=$(dirname "$at"); done
  printf '%s|%s\n' "$path" "$(df -Pk "$at" 2>/dev/null | awk 'NR == 2 { printf "%.0f", $4 * 1024 }')"
done
section end
