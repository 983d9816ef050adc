# Runs a command as the container's main process. An ending that trying again can't change (docs/operations.md) becomes
# 0, so that a restart policy leaves it at that; the engine's own policies can't tell codes apart.
supervised() {
    "$@" &
    child=$!
    trap 'kill -TERM "$child" 2> /dev/null' TERM INT
    code=0
    wait "$child" || code=$?
    trap - TERM INT
    if kill -0 "$child" 2> /dev/null; then # a signal ended the waiting, not the process
        code=0
        wait "$child" || code=$?
    fi
    case $code in
        2 | 3 | 40 | 41 | 42)
            echo "ended with code $code, which starting it again would not change: it is left at that" >&2
            exit 0
            ;;
    esac
    exit "$code"
}
