#!/bin/sh
# The coordinator's container: makes the study at its first start, under the authority whose public files were handed
# over, and serves it.
set -eu
. /opt/supervised.sh
study=/var/lib/sordino/study/$STUDY

if [ ! -f "$study/study.toml" ]; then
    # shellcheck disable=SC2086  # options, to be split
    sordino init "$study" --authority "/var/lib/sordino/handover/$STUDY" --enrol "$PLACES" \
        --rounds "$ROUNDS" --sampling lottery --cohort "$COHORT" --population "$COHORT" \
        --epsilon "$EPSILON" --http 0.0.0.0:9464 ${STUDY_OPTIONS:-}
fi
supervised sordino serve "$study" --json
