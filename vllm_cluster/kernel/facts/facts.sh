# What a host is, in sections that start with "@@name". Changes nothing. Plain POSIX sh.
# Arguments: the addresses of the peers (one word, comma separated), then paths that must exist, the model cache first.
peers=$1
shift
LC_ALL=C
export LC_ALL
PATH=$PATH:/usr/sbin:/sbin:/usr/local/bin
section() { printf '\n@@%s\n' "$1"; }
# `limit SECONDS COMMAND…`, where there is something to limit with.
# What ignores that it is ended is killed, where this timeout knows how (an old one of busybox does not); 137 is then 124.
if timeout -k 1 1 sh -c : 2>/dev/null; then limit() { timeout -k 2 "$@" || { set -- $?; return $(($1 == 137 ? 124 : $1)); }; }
elif command -v timeout >/dev/null 2>&1; then limit() { timeout "$@"; }; else limit() { shift; "$@"; }; fi
# A file in which something is one line, without a process for it. An attribute of sysfs may refuse to be read.
get() { value=; { read -r value <"$1"; } 2>/dev/null; }
line() { get "$1"; printf '%s' "$value"; }

section machine
cat /etc/machine-id 2>/dev/null || cat /var/lib/dbus/machine-id 2>/dev/null
section boot
line /proc/sys/kernel/random/boot_id
section hostname
uname -n
section architecture
uname -m
section distribution
[ -r /etc/os-release ] && while IFS='=' read -r key value; do
  case $key in ID | ID_LIKE) printf '%s\n' "$value" ;; esac
done </etc/os-release
section clock
date +%s
section memory
awk '/^MemTotal:/ { printf "%.0f\n", $2 * 1024 }' /proc/meminfo
section available
awk '/^MemAvailable:/ { printf "%.0f\n", $2 * 1024 }' /proc/meminfo
section nics
{ ip -d -j addr 2>/dev/null || ip -j addr 2>/dev/null; } | head -c 2000000
section speeds
for nic in /sys/class/net/*; do
  get "$nic/speed"
  printf '%s|%s\n' "${nic##*/}" "$value"
done
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
  nets=$(for net in "$device"/device/net/*; do [ -e "$net" ] && printf '%s,' "${net##*/}"; done)
  pci=$(cd "$device/device" 2>/dev/null && pwd -P)
  printf '%s|%s|%s|%s|%s|%s|%s|%s|%s|%s\n' "${device##*/}" "${port##*/}" "$(line "$port/state")" \
    "$(line "$port/link_layer")" "$(line "$port/rate")" "$verbs" "$nets" "${pci##*/}" \
    "$(line "$device/device/numa_node")" "${pci#/sys/devices/}"
done
section gids
# The addresses of a port; there is room for 256, and those that are used come first.
for port in /sys/class/infiniband/*/ports/*; do
  [ -d "$port/gids" ] || continue
  device=${port%/ports/*}
  for index in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
    get "$port/gids/$index"
    case $value in '' | *[!0-9a-f:]* | 0000:0000:0000:0000:0000:0000:0000:0000 | fe80:0000:0000:0000:0000:0000:0000:0000) continue ;; esac
    address=$value
    get "$port/gid_attrs/types/$index"
    kind=$value
    get "$port/gid_attrs/ndevs/$index"
    printf '%s|%s|%s|%s|%s|%s\n' "${device##*/}" "${port##*/}" "$index" "$address" "$kind" "$value"
  done
done
section rdma
for node in /dev/infiniband/*; do [ -e "$node" ] && printf '%s\n' "$node"; done
section gpus
# A line that is not a row is the reason for fewer: a driver that does not answer, a GPU that is lost.
smi='' answer=''
if command -v nvidia-smi >/dev/null 2>&1; then
  wanted=index,uuid,name,memory.total,memory.used,driver_version,mig.mode.current,ecc.errors.uncorrected.volatile.total,pci.bus_id
  answer=$(limit 20 nvidia-smi --query-gpu=$wanted --format=csv,noheader,nounits 2>&1)
  case $? in
    124) answer="nvidia-smi does not answer" ;;
    *) smi=answers ;;
  esac
  printf '%s\n' "$answer" | head -c 20000
fi
section gpuprocesses
# What computes on them, and for whom. A driver alone takes some MiB, a CUDA context hundreds; N/A is unified memory.
if printf '%s\n' "$answer" | awk -F', *' 'NF >= 5 && $5 > 100 { found = 1 } END { exit !found }'; then
  wanted=gpu_uuid,pid,used_memory,process_name
  limit 10 nvidia-smi --query-compute-apps=$wanted --format=csv,noheader,nounits 2>/dev/null | head -n 128 | while IFS=, read -r uuid pid rest; do
    at=/proc/${pid# }
    printf '%s|%s|%s|%s|%s\n' "$uuid" "$pid" "$(stat -c '%U %u' "$at" 2>/dev/null)" \
      "$(head -c 500 "$at/cgroup" 2>/dev/null | tr '\n|' '  ')" "$rest"
  done
fi
section gpupaths
# Where each GPU hangs: what is near it, and on which side of the machine. sysfs writes 0000:06:00.0 for 00000000:06:00.0.
for bus in $(printf '%s\n' "$answer" | awk -F', *' 'NF >= 9 { print tolower(substr($9, 5)) }' | head -n 64); do
  at=/sys/bus/pci/devices/$bus
  path=$(cd "$at" 2>/dev/null && pwd -P)
  printf '%s|%s|%s\n' "$bus" "${path#/sys/devices/}" "$(line "$at/numa_node")"
done
section gputopology
# How the GPUs are joined, where there is a choice between them.
[ "$(printf '%s\n' "$answer" | grep -c '^[0-9]')" -lt 2 ] || limit 10 nvidia-smi topo -m 2>/dev/null | head -c 50000
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
section cdistale
# What the files for NVIDIA's GPUs hand out and the host no longer has, as after an upgrade of the driver.
# Files that the system writes at each start outrank those that a person made.
specs=/etc/cdi/nvidia
ls /var/run/cdi/nvidia* >/dev/null 2>&1 && specs=/var/run/cdi/nvidia
for spec in "$specs"*.yaml "$specs"*.json; do
  [ -e "$spec" ] && head -c 1000000 "$spec" | grep -oE '(^|[" -])(hostPath|path)"?: *"?/[^",]+' | sed 's/^[^/]*//' | sort -u | head -n 500
done | while read -r path; do
  [ -e "$path" ] || printf '%s\n' "$path"
done | head -n 5
section toolkit
command -v nvidia-container-runtime-hook >/dev/null 2>&1 && echo hook
command -v nvidia-ctk >/dev/null 2>&1 && limit 5 nvidia-ctk --version 2>/dev/null | head -n 1 | head -c 200
section docker
# A daemon that is frozen answers never: it is asked once, and the user waits no longer than this.
limit 10 docker version --format '{{json .Server}}' 2>/dev/null
case $? in 124) frozen=y ;; *) frozen= ;; esac
section dockercdi
# A file proves nothing: the engine reports whether it reads any, newer ones (28.2) also what they found there. A client
# that does not know a field prints what comes before it.
[ -z "$smi" ] || [ "$frozen" ] || limit 20 docker info --format '{{json .CDISpecDirs}}{{"\n"}}{{json .DiscoveredDevices}}' 2>/dev/null | head -c 100000
section dockerinfo
wanted='{"Root":{{json .DockerRootDir}},"ID":{{json .ID}},"Runtimes":{{json .Runtimes}},"CgroupDriver":{{json .CgroupDriver}},"CgroupVersion":{{json .CgroupVersion}},"SecurityOptions":{{json .SecurityOptions}}}'
if [ "$frozen" ]; then info="no answer within 10 s"; else info=$(limit 10 docker info --format "$wanted" 2>&1 | tail -n 5); fi
printf '%s\n' "$info"
case $info in
  *"permission denied"*) limit 10 sudo -n docker version >/dev/null 2>&1 </dev/null && echo "sudo docker answers" ;;
esac
root=$(printf '%s\n' "$info" | sed -n 's/^{"Root":"\([^"]*\)".*/\1/p')
section disks
for path in "${root:-/var/lib/docker}" "${1:-/}" /tmp; do
  at=$path
  while [ ! -e "$at" ] && [ "$at" != / ]; do at=$(dirname "$at"); done
  printf '%s|%s\n' "$path" "$(df -Pk "$at" 2>/dev/null | awk 'NR == 2 { printf "%.0f", $4 * 1024 }')"
done
section end
