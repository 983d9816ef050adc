# Runs commands as the container's main process. An ending that trying again can't change (docs/operations.md) becomes 0,
# so that a restart policy leaves it at that; the engine's own policies can't tell codes apart.
# Names that no script here has for something else.
told_to_end= # whether this was
owed=        # whether the process is still to be told
child=       # the process
up=          # whether it would hear
woken=       # whether a signal came while it was waited for
trap 'told_to_end=yes owed=yes woken=yes; pass_on' TERM INT
trap 'up=yes woken=yes; pass_on' USR1

pass_on() {
    if [ -n "$owed" ] && [ -n "$child" ] && [ -n "$up" ]; then
        owed=
        kill -TERM "$child" 2> /dev/null || :
    fi
}

ended() {
    case $1 in
        2 | 3 | 40 | 41 | 42)
            echo "ended with code $1, which starting it again would not change: it is left at that" >&2
            exit 0
            ;;
    esac
    exit "$1"
}

# Runs a command, passes signals on to it for as long as it is there, and leaves its exit code in $code.
watched() {
    [ -z "$told_to_end" ] || exit 143 # there is nobody to pass it to, and now there needn't be
    child= up= woken=yes
    # A shell that has just forked still has its parent's traps, in which a signal to it is lost: so it says when it has
    # put them off, and is told nothing before.
    (
        kill -USR1 $$
        exec "$@"
    ) &
    child=$!
    pass_on
    while [ -n "$woken" ]; do # a signal ends the waiting, not the process
        woken= code=0
        wait "$child" || code=$?
    done
}

# For what must be done before, once.
first() {
    watched "$@"
    [ "$code" = 0 ] || ended "$code"
}

supervised() {
    watched "$@"
    ended "$code"
}
