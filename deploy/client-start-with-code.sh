#!/bin/sh
# A participant's container whose one-time code lies in a mounted secret, in the file that is named as the container is.
# Handed on as a file, as systemd would: a command line can be read by others.
set -eu
. /opt/supervised.sh
home=/var/lib/sordino/clients/home
if [ ! -f "$home/host.toml" ]; then
    umask 077
    export CREDENTIALS_DIRECTORY=/tmp/credentials
    mkdir -p "$CREDENTIALS_DIRECTORY"
    cat "/run/codes/$POD_NAME" > "$CREDENTIALS_DIRECTORY/join-code"
fi
supervised sordino join "${COORDINATOR:-coordinator:8444}" --home "$home" --part place --yes --service
