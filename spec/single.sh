#!/bin/sh
# cagewrap in a single file: this script, and after it an archive of the program's directory.
# It unpacks itself once for each user, and becomes what it unpacked: no process of it stays, and nothing in /tmp.
set -u
home=${XDG_CACHE_HOME:-}
case $home in /*) ;; *) home=${HOME:-/nonexistent}/.cache ;; esac
all=$home/cagewrap-program
# By a link in there: the program is told the name that it was called by.
name=${0##*/}
case $name in cagewrap*) name=cagewrap ;; esac
program=$all/@ID@/bin/$name
# A shim file is to start this, not what is unpacked.
[ "${1:-}" != shim ] || export CAGEWRAP_PROGRAM="$0"
[ -x "$program" ] && [ -O "$program" ] && exec "$program" "$@"

# As cagewrap's own errors of this kind: docs/reference/exit-codes.md.
die() {
    printf 'cagewrap: %s\n  fix: %s\n' "$1" "$2" >&2
    exit 119
}

# In a subshell: the umask and the lock are not for the program.
unpack() (
    umask 077
    elsewhere="export XDG_CACHE_HOME=DIR, or install the directory build"
    mkdir -p "$all" 2>/dev/null
    [ -w "$all" ] || die "This single file unpacks itself in $all, which cannot be written to." "$elsewhere"
    # Of several at once, one unpacks.
    exec 9>"$all/lock"
    flock 9 2>/dev/null
    [ -e "$all/@ID@" ] && return
    rm -rf "$all"/unpacking.*
    new=$all/unpacking.$$
    mkdir "$new"
    if ! problem=$(tail -n +@FIRST@ "$0" | LC_ALL=C tar -xzf - -C "$new" 2>&1) || ! [ -e "$new/program/cagewrap" ]; then
        rm -rf "$new"
        case $problem in
            *"No space left"* | *"rote only"*) die "This single file cannot unpack itself in $all: no space left there." \
                "make room for 30 MB, or $elsewhere" ;;
        esac
        problem=$(printf '%s\n' "$problem" | head -n 1)
        die "This single file cannot unpack itself in $all: ${problem:-it is damaged}." "download it again, or $elsewhere"
    fi
    mkdir "$new/program/bin"
    mv -T "$new/program" "$all/@ID@"
    rmdir "$new"
    remove_old
)

# Other versions that nothing runs and that nothing has run for a week.
remove_old() {
    for old in "$all"/*/cagewrap; do
        if [ "$old" != "$all/@ID@/cagewrap" ] && [ -z "$(find "$old" -atime -7)" ]; then
            readlink /proc/[0-9]*/exe 2>/dev/null | grep -qxF "$(readlink -f "$old")" || rm -rf "${old%/*}"
        fi
    done
}

[ -e "$all/@ID@" ] || unpack || exit
[ -e "$program" ] || ln -s ../cagewrap "$program" 2>/dev/null
[ -x "$program" ] ||
    die "$all is on a file system that is mounted noexec, so what this single file unpacked there cannot run." \
        "export XDG_CACHE_HOME=DIR, or install the directory build"
[ -O "$program" ] ||
    die "$all belongs to another user, who could have put anything there." "export XDG_CACHE_HOME=DIR, of your own"
exec "$program" "$@"
