#!/bin/sh
# A participant's container whose one-time code lies in a mounted file. Handed on as a file, as systemd would: a command
# line can be read by others.
set -eu
. /opt/supervised.sh
home=/var/lib/sordino/clients/home
if [ ! -f "$home/host.toml" ]; then
    if [ ! -f /run/code ]; then
        echo "there is no join code in /run/code, and $home has no place in a study yet" >&2
        exit 1
    fi
    umask 077
    export CREDENTIALS_DIRECTORY=/tmp/credentials
    mkdir -p "$CREDENTIALS_DIRECTORY"
    cat /run/code > "$CREDENTIALS_DIRECTORY/join-code"
fi
supervised sordino join "${COORDINATOR:-coordinator:8444}" --home "$home" --part place --yes --service
