# Holds the lease of this host's Docker for as long as heartbeats come in on standard input. Plain POSIX sh and
# util-linux' flock. Arguments: the folder of the lock, the holder's token, who holds it, seconds without a heartbeat
# after which the lease is given up.
# Prints "vcluster-lease held", "vcluster-lease busy WHO", or "vcluster-lease refused KIND NAMES; WHAT": the laptop knows
# what to do about each kind, for no line to paste comes from a host.
folder=$1 token=$2 who=$3 ttl=$4 parent=${1%/*}
export LC_ALL=C
# Who can enter the folder can use what is in it, root's and the user's own alike; no others can.
umask 0
# A laptop that has gone reads no answer: what is to be done here is done all the same.
trap '' PIPE
refuse() { echo "vcluster-lease refused $2; $1"; exit 69; }
command -v flock >/dev/null 2>&1 || refuse "flock is missing" flock

# The folder is named after the engine, which every way to it leads to: only one can be there, whoever made it. Those
# who may use Docker share it, and no others can hold or read it: it has the group of root's socket. The folder of a
# user's own socket (rootless) is that user's; with no socket (tcp) it is of the account that makes it.
me=$(id -u)
endpoint=$(docker context inspect --format '{{.Endpoints.docker.Host}}' 2>/dev/null) ||
    endpoint=${DOCKER_HOST:-unix:///var/run/docker.sock}
owner=$me group=
case $endpoint in
unix://*)
    socket=${endpoint#unix://}
    [ -S "$socket" ] && owner=$(stat -Lc %u "$socket")
    [ -S "$socket" ] && [ "$owner" = 0 ] && group=$(stat -Lc %g "$socket")
    ;;
tcp://localhost | tcp://localhost:* | tcp://127.* | tcp://\[::1\]*) ;;
# A lock here would not exclude those who reach that engine on its own machine.
*) refuse "its docker leads to $endpoint" context ;;
esac
if [ "$group" ]; then
    format='%F %a %g' wanted="directory 2770 $group"
    join="group $(stat -Lc %G "$socket") $(id -un)"
else format='%F %a %u' wanted="directory 700 $owner"; fi
# Makes the folder where it is not there, and looks whose it is.
prepare() {
    if [ ! -e "$folder" ]; then
        # Whole or not at all: another who comes now must not see a folder that has not its group yet.
        new=$(mktemp -d "$folder.XXXXXX") || refuse "$parent is not writable" parent
        if [ "$group" ] && ! { chgrp "$group" "$new" && chmod 2770 "$new"; } 2>/dev/null; then
            rmdir "$new"
            refuse "$folder cannot be given the group of $socket" "$join"
        fi
        if [ "$owner" != "$me" ] && [ -z "$group" ] && ! chown "$owner" "$new" 2>/dev/null; then
            rmdir "$new"
            refuse "$socket is another user's" "user $(stat -Lc %U "$socket")"
        fi
        mv -T "$new" "$folder" 2>/dev/null || rmdir "$new"
    fi
    found=$(stat -c "$format" "$folder" 2>/dev/null)
    [ "$found" = "$wanted" ] && [ -e "$folder" ] && [ ! -x "$folder" ] &&
        refuse "$folder has the group of $socket, which this user is not in" "$join"
    [ -z "$found" ] || [ "$found" = "$wanted" ] && return
    whose=$(stat -c 'a %F of %U:%G, mode %a' "$folder" 2>/dev/null) || return
    # It may be in use, by an account that reaches this engine in another way.
    refuse "$folder is not of those who may use Docker at $endpoint: it is $whose" unused
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
    [ $((tries += 1)) -le 100 ] || refuse "$folder/lock vanishes again and again" folder
    prepare
    # Whoever lets go removes lock and folder, maybe just now. Without `command` a failed redirection ends the shell.
    if ! { command exec 9>>"$folder/lock"; } 2>/dev/null; then
        whose=$(stat -c '%F of %U:%G, mode %a' "$folder/lock" 2>/dev/null) || continue
        [ -f "$folder/lock" ] && [ -w "$folder/lock" ] ||
            refuse "$folder/lock is not of those who may use Docker: it is a $whose" unused
        continue
    fi
    flock -n 9
    case $? in
    0) ;;
    1) echo "vcluster-lease busy $(head -n 1 "$folder/holder" 2>/dev/null | cut -c 1-300)"; exit 75 ;;
    *) refuse "$folder/lock cannot be locked" folder ;;
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
echo "vcluster-lease held"
# Each heartbeat is answered: only so does the holder know that it arrived. No child keeps the lock.
while :; do
    timeout "$ttl" sh -c 'read -r beat || exit 1; [ "$beat" != end ] || exit 3; echo .' 9>&-
    case $? in
    0) ;;
    3) over=end; exit 0 ;;
    *) exit 0 ;;
    esac
done
