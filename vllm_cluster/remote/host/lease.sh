# Holds this host's lease for as long as heartbeats come in on standard input. Plain POSIX sh and util-linux' flock.
# Arguments: where the folder of the lock is (/tmp), the holder's token, who holds it, seconds without a heartbeat
# after which the lease is given up.
# Prints "vcluster-lease held FOLDER", "vcluster-lease busy WHO", or "vcluster-lease refused WHAT; fix: REMEDY".
parent=$1 token=$2 who=$3 ttl=$4
export LC_ALL=C
umask 007
# A laptop that has gone reads no answer: what is to be done here is done all the same.
trap '' PIPE
refuse() { echo "vcluster-lease refused $1; fix: $2"; exit 69; }
command -v flock >/dev/null 2>&1 || refuse "flock is missing" "install util-linux"

# Those who may use Docker share the lease, and no others can hold or read it: the folder has the socket's group.
# With a Docker of one's own (rootless), or none at a socket, it is one's own.
me=$(id -u)
socket=${DOCKER_HOST:-unix:///var/run/docker.sock}
socket=${socket#unix://}
owner= group=
[ -S "$socket" ] && owner=$(stat -Lc %u "$socket") && group=$(stat -Lc %g "$socket")
if [ "${owner:-$me}" = "$me" ] && [ "$me" != 0 ] || [ -z "$owner" ]; then
    folder=$parent/vcluster-$me format='%F %a %u' wanted="directory 700 $me" group=
else
    folder=$parent/vcluster format='%F %a %g' wanted="directory 2770 $group"
fi
# Makes the folder where it is not there, and looks whose it is.
prepare() {
    if [ ! -e "$folder" ]; then
        # Whole or not at all: another who comes now must not see a folder that has not its group yet.
        new=$(mktemp -d "$folder.XXXXXX") || refuse "$parent is not writable" "look at: ls -ld $parent; df $parent"
        if [ -n "$group" ] && ! { chgrp "$group" "$new" && chmod 2770 "$new"; } 2>/dev/null; then
            rmdir "$new"
            remedy="sudo usermod -aG $(stat -Lc %G "$socket") $(id -un)"
            refuse "$folder cannot be given the group of $socket" "add this user to that group: $remedy"
        fi
        mv -T "$new" "$folder" 2>/dev/null || rmdir "$new"
    fi
    found=$(stat -c "$format" "$folder" 2>/dev/null)
    [ -z "$found" ] || [ "$found" = "$wanted" ] && return
    whose=$(stat -c 'a %F of %U:%G, mode %a' "$folder" 2>/dev/null) || return
    refuse "$folder is not of those who may use Docker: it is $whose" "sudo rm -r $folder"
}

born() { stat=$(cat "/proc/$1/stat" 2>/dev/null) && set -- ${stat##*)} && echo "${20}"; }
# The streams to Docker that were opened under the lease. A process id alone could by now be another program's.
kill_streams() {
    for file in "$folder"/stream.*; do
        [ -e "$file" ] || continue
        read -r began <"$file" && [ "$began" = "$(born "${file##*.}")" ] && kill -9 "${file##*.}" 2>/dev/null
        rm -f "$file"
    done
}
tries=0
while :; do
    [ $((tries += 1)) -le 100 ] || refuse "$folder/lock vanishes again and again" "look at: ls -l $folder; df $folder"
    prepare
    # Whoever lets go removes lock and folder, maybe just now. Without `command` a failed redirection ends the shell.
    if ! { command exec 9>>"$folder/lock"; } 2>/dev/null; then
        whose=$(stat -c '%F of %U:%G, mode %a' "$folder/lock" 2>/dev/null) || continue
        [ -f "$folder/lock" ] && [ -w "$folder/lock" ] ||
            refuse "$folder/lock is not of those who may use Docker: it is a $whose" "sudo rm -r $folder"
        continue
    fi
    flock -n 9
    case $? in
    0) ;;
    1) echo "vcluster-lease busy $(head -n 1 "$folder/holder" 2>/dev/null | cut -c 1-300)"; exit 75 ;;
    *) refuse "$folder/lock cannot be locked" "look at: df $folder" ;;
    esac
    # A lock on a file that was removed meanwhile would exclude no one.
    [ "$(stat -Lc %i /proc/self/fd/9)" = "$(stat -c %i "$folder/lock" 2>/dev/null)" ] && break
done
over=lost
give_up() {
    # In this order: a stream registers itself first and looks for the token after, so one of both sees the other.
    rm -f "$folder/token"
    # Who has sent `end` sends nothing more; of whoever fell silent nothing may arrive any more.
    if [ "$over" = end ]; then rm -f "$folder"/stream.*; else kill_streams; fi
    # Nothing is left behind; the folder stays where another user made it.
    rm -f "$folder/holder" "$folder/lock"
    rmdir "$folder" 2>/dev/null
}
trap give_up EXIT
trap 'exit 143' HUP INT TERM
# Those of a holder that was killed here before it could end them.
kill_streams
printf '%s\n' "$who" >"$folder/holder"
printf '%s\n' "$token" >"$folder/token"
echo "vcluster-lease held $folder"
# Each heartbeat is answered: only so does the holder know that it arrived. No child keeps the lock.
while :; do
    timeout "$ttl" sh -c 'read -r beat || exit 1; [ "$beat" != end ] || exit 3; echo .' 9>&-
    case $? in
    0) ;;
    3) over=end; exit 0 ;;
    *) exit 0 ;;
    esac
done
