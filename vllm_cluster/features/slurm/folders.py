"""Which folders no other user can put files into: words of a shell, for the job and for what submits it."""

JUDGES = r"""
# A link counts as what all may write.
private() { [ -O "$1" ] && [ "$(find "$1" -maxdepth 0 ! -perm -20 ! -perm -2)" ]; }

# Make a folder that no other user may enter. Where the one above it has a default ACL, that takes the place of the
# umask, and gives others rights that a mode of 700 shuts out again.
own_folder() {
  { mkdir -m 700 "$1" 2>/dev/null || [ -d "$1" ]; } && { [ -L "$1" ] || [ ! -O "$1" ] || chmod 700 "$1"; }
}
closed_to_others() { [ -O "$1" ] && [ "$(find "$1" -maxdepth 0 -type d ! -perm /077)" ]; }

# Behind a group that may write, others may be named whom no mode shows: `ls` writes a + for them.
shared_by_acl() { case $(LC_ALL=C ls -ld "$1") in ?????w???[!tT]+*) ;; *) return 1 ;; esac; }

# Whoever may write in a folder above, without its sticky bit, could put other programs in the job's place; so could the
# person who owns it, with that bit too. Many systems give each user a group of the same name, with no other member.
# Above the home folder it is not looked at: whoever may rename that has all of this user's files. What cannot be seen
# counts as open: others may have moved it away for this moment. It takes a path without links, and prints why not.
closed() {
  above=$1 own=4294967294 home=$(cd -P "${HOME:-/}" 2>/dev/null && pwd -P)
  [ "$(id -gn)" != "$(id -un)" ] || own=$(id -g)
  while [ "$above" ]; do
    [ "$(find "$above" -maxdepth 0 ! \( ! -perm -1000 \( -perm -2 -o -perm -20 ! -gid "$own" \) -o \
      -uid +999 ! -uid "$(id -u)" ! -uid 65534 \))" ] && ! shared_by_acl "$above" || {
      echo "others may rename what is in $above: export VCLUSTER_JOBS=FOLDER; or, where it is yours, chmod +t $above"
      return 1
    }
    [ "$above" != "$home" ] || break
    above=${above%/*}
  done
}
""".strip()
