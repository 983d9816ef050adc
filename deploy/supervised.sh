# Runs commands as the container's main process. An ending that trying again can't change (docs/operations.md) becomes 0,
# so that a restart policy leaves it at that; the engine's own policies can't tell codes apart.
ended() {
    case $1 in
        2 | 3 | 40 | 41 | 42)
            echo "ended with code $1, which starting it again would not change: it is left at that" >&2
            exit 0
            ;;
    esac
    exit "$1"
}

# For what must be done before, once.
first() {
    code=0
    "$@" || code=$?
    [ "$code" = 0 ] || ended "$code"
}

supervised() {
    child=
    asked=
    # Before the process is there: who is signalled in between passes it on as soon as there is somebody to pass it to.
    trap 'asked=yes; [ -z "$child" ] || kill -TERM "$child" 2> /dev/null || :' TERM INT
    "$@" &
    child=$!
    [ -z "$asked" ] || kill -TERM "$child" 2> /dev/null || :
    code=0
    wait "$child" || code=$?
    trap - TERM INT
    if kill -0 "$child" 2> /dev/null; then # a signal ended the waiting, not the process
        code=0
        wait "$child" || code=$?
    fi
    ended "$code"
}
