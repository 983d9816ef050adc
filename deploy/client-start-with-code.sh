#!/bin/sh
# A participant's container whose one-time code lies in a mounted secret, in the file named as the container is.
set -eu
. /opt/supervised.sh
address=${SORDINO_COORDINATOR:-coordinator:8444}
supervised sordino join "$address" --code "@/run/codes/$POD_NAME" --homes /var/lib/sordino/clients --part place --yes
