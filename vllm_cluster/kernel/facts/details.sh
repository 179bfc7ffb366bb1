# The longer look, appended to facts.sh, whose functions and arguments it has: what takes more than some milliseconds.
# Each section is bounded in time and in size, and empty where the host has no answer.
section smi
# The list of clocks is two thirds of it, and nothing asks for them.
if [ -n "$smi" ]; then
  smi=$(limit 20 nvidia-smi -q -x 2>/dev/null | head -c 8000000 | grep -v '<supported_graphics_clock>' | head -c 1500000)
  printf '%s\n' "$smi"
fi
section nvlink
[ -z "$smi" ] || limit 10 nvidia-smi nvlink -s 2>/dev/null | head -c 50000
section xid
# The kernel may keep its log from users: then this section is empty, else its first line is "readable".
if limit 5 dmesg >/dev/null 2>&1; then
  echo readable
  limit 5 dmesg 2>/dev/null | grep 'NVRM: Xid' | tail -n 20 | head -c 8000
fi
section fabricmanager
command -v systemctl >/dev/null 2>&1 && limit 3 systemctl show -p LoadState,ActiveState nvidia-fabricmanager 2>/dev/null
section driver
grep -oE '^nv(idia_peermem|_peer_mem) ' /proc/modules 2>/dev/null
head -c 200 /proc/driver/nvidia/version 2>/dev/null
section acs
# Without root lspci hides it, and nothing is printed.
ls /sys/class/infiniband/* >/dev/null 2>&1 && limit 5 lspci -vvv 2>/dev/null | grep -o 'ACSCtl:.*' | head -n 100
section iommu
line /sys/kernel/iommu_groups/0/type
section enginelock
for pid in $(pgrep -o -x dockerd 2>/dev/null || pidof dockerd 2>/dev/null); do
  awk '/^Max locked memory/ { print $4 }' "/proc/$pid/limits" 2>/dev/null
done | head -n 1
section resolves
# "None" and "unknown" differ: 124 is a name server that does not answer.
if command -v getent >/dev/null 2>&1; then
  names=$(limit 4 getent ahosts "$(uname -n)" 2>/dev/null)
  [ $? = 124 ] || printf 'asked\n%s\n' "$names" | awk '{ print $1 }' | uniq | head -n 16
fi
section filesystems
for path in "${root:-/var/lib/docker}" "${1:-/}" /tmp; do
  at=$path
  while [ ! -e "$at" ] && [ "$at" != / ]; do at=$(dirname "$at"); done
  limit 5 df -Pk "$at" 2>/dev/null | awk 'NR == 2 { printf "%s|%.0f|%s\n", $1, $2 * 1024, $6 }' | while IFS='|' read -r source total mount; do
    kind=$(awk -v at="$mount" '$2 == at { kind = $3 } END { print kind }' /proc/mounts 2>/dev/null)
    uuid=
    case $source in /dev/*) uuid=$(limit 3 lsblk -ndo UUID "$source" 2>/dev/null) ;; esac
    printf '%s|%s|%s|%s|%s|%s\n' "$path" "$kind" "$source" "$mount" "$total" "$uuid"
  done
done
section revisions
hub=${1:-/nowhere}/hub
for ref in "$hub"/models--*/refs/main; do
  [ -e "$ref" ] || continue
  repository=${ref%/refs/main}
  printf '%s|%s\n' "${repository##*/models--}" "$(line "$ref")"
done | head -n 300 | head -c 50000
section incomplete
[ -d "$hub" ] && limit 3 find "$hub" -maxdepth 3 -name '*.incomplete' 2>/dev/null | head -n 5 | head -c 4000
section dangling
[ -d "$hub" ] && limit 3 find "$hub" -maxdepth 5 -xtype l 2>/dev/null | head -n 5 | head -c 4000
section untokenized
for folder in "$hub"/models--*/snapshots/*/; do
  set -- "$folder"*.safetensors
  [ -e "$1" ] || continue
  for file in "$folder"tokenizer* "$folder"*.model "$folder"*.tiktoken "$folder"tekken.json "$folder"vocab.*; do
    [ -e "$file" ] && continue 2
  done
  printf '%s\n' "$folder"
done | head -n 5 | head -c 4000
section whole
