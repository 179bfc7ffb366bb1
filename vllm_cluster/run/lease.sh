# Holds the cluster's lease for as long as heartbeats come in on standard input. Plain POSIX sh and util-linux' flock.
# Arguments: the lock file, who holds it, seconds without a heartbeat after which it is given up.
# Exit codes: 75 somebody else holds it (who is printed), 76 the file was replaced meanwhile: try again.
file=$1
who=$2
ttl=$3
command -v flock >/dev/null 2>&1 || { echo "flock is missing: install util-linux" >&2; exit 69; }
[ -e "$file" ] || (umask 0; : >>"$file") 2>/dev/null
# Opened for reading: /tmp lets nobody open another user's file with O_CREAT (fs.protected_regular).
exec 9<"$file" || exit 73
flock -n -E 75 9 || { cat "$file"; exit 75; }
# A holder that has let go removes the file: a lock on the removed one would exclude nobody.
[ "$(stat -Lc %i /proc/self/fd/9)" = "$(stat -c %i "$file" 2>/dev/null)" ] || exit 76
printf '%s\n' "$who" | dd of="$file" conv=nocreat 2>/dev/null
echo held
# Each heartbeat is answered: only so does the holder know that it arrived.
while timeout "$ttl" sh -c 'read -r beat && [ "$beat" != end ] && echo .'; do :; done
rm -f "$file" 2>/dev/null
