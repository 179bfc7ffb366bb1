# What lies in a model cache, a line a model: KIND|NAME|COMMIT|KIB|LAST USE|PROBLEM. Changes nothing. Plain POSIX sh.
# Argument: the cache. A model of the hub is complete when its snapshot has weights, each file that its index names,
# and no link that leads nowhere, and when no download of it was broken off.
LC_ALL=C
export LC_ALL
# What ignores that it is ended is killed, where this timeout knows how (an old one of busybox does not); 137 is then 124.
if timeout -k 1 1 sh -c : 2>/dev/null; then limit() { timeout -k 2 "$@" || { set -- $?; return $(($1 == 137 ? 124 : $1)); }; }
elif command -v timeout >/dev/null 2>&1; then limit() { timeout "$@"; }; else limit() { shift; "$@"; }; fi
weights() { find -L "$1" -maxdepth 2 -type f \( -name '*.safetensors' -o -name '*.bin' -o -name '*.gguf' -o -name '*.pt' -o -name '*.pth' \) 2>/dev/null; }
# describe KIND NAME COMMIT FOLDER SNAPSHOT
describe() {
  wrong=
  if [ ! -d "$5" ]; then
    wrong='no files of this revision'
  elif broken=$(limit 5 find "$5" -maxdepth 3 -xtype l 2>/dev/null | head -n 1) && [ -n "$broken" ]; then
    wrong="broken link: ${broken#"$5"/}"
  elif [ -z "$(weights "$5" | head -n 1)" ]; then
    wrong='no weights'
  else
    for index in "$5"/*.index.json; do
      [ -e "$index" ] || continue
      for shard in $(head -c 20000000 "$index" | grep -oE '"[A-Za-z0-9_./-]+\.(safetensors|bin)"' | tr -d '"' | sort -u | head -n 2000); do
        [ -e "$5/$shard" ] || { wrong="missing: $shard"; break 2; }
      done
    done
  fi
  partial=$(limit 5 find "$4/blobs" -maxdepth 1 -name '*.incomplete' 2>/dev/null | head -n 1)
  [ -z "$wrong" ] && [ -n "$partial" ] && wrong='a download is running, or was interrupted'
  kib=$(limit 20 du -sk "$4" 2>/dev/null | awk 'NR == 1 { print $1 }')
  used=$(weights "$5" | head -n 500 | while read -r file; do stat -Lc %X "$file" 2>/dev/null; done | sort -n | tail -n 1)
  printf '%s|%s|%s|%s|%s|%s\n' "$1" "$2" "$3" "$kib" "$used" "$wrong"
}
{
  for folder in "$1"/hub/models--*; do
    [ -d "$folder" ] || continue
    commit=
    { read -r commit <"$folder/refs/main"; } 2>/dev/null
    # Downloaded by its commit, a model has no branch: then what is there is what was asked for.
    [ -n "$commit" ] || for snapshot in "$folder"/snapshots/*; do [ -d "$snapshot" ] && commit=${snapshot##*/}; done
    describe hub "${folder##*/models--}" "$commit" "$folder" "$folder/snapshots/${commit:-none}"
  done
  limit 10 find "$1" -maxdepth 3 -path "$1/hub" -prune -o -name config.json -print 2>/dev/null | sort | while read -r config; do
    folder=${config%/config.json}
    describe folder "${folder#"$1"/}" '' "$folder" "$folder"
  done
} | head -n 500 | head -c 200000
echo whole
