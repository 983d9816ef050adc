#!/bin/sh
# The coordinator's container: makes the study at its first start, under the authority whose public files were handed
# over, and serves it.
set -eu
. /opt/supervised.sh
study=/var/lib/sordino/study/$STUDY
handed=/var/lib/sordino/handover/$STUDY
asked="rounds $ROUNDS, places $PLACES, cohort $COHORT, epsilon $EPSILON, options ${STUDY_OPTIONS:-}"

if [ ! -f "$study/study.toml" ]; then
    if [ -e "$handed/taken" ]; then
        echo "the study's journal and ledger are gone (volume study): restore the volume from its newest copy, or begin" \
            "a study under another name (SORDINO_STUDY). Begun anew under this one it would know nothing of what was" \
            "spent, and participants would refuse the rounds that they have seen" >&2
        ended 2
    fi
    # What one that was killed has left: the folder gets its name when it is whole.
    rm -rf "${study%/*}/.$STUDY-"????????
    echo "$asked" > "$study.asked"
    # shellcheck disable=SC2086  # options, to be split
    first sordino init "$study" --authority "$handed" --enrol "$PLACES" --rounds "$ROUNDS" \
        --sampling lottery --cohort "$COHORT" --population "$COHORT" --epsilon "$EPSILON" \
        --http 0.0.0.0:9464 ${STUDY_OPTIONS:-}
fi
# Of a study that was just made, or at whose making this was killed here. It has its own copies of what was handed over;
# where those files are mounted read-only they stay.
[ ! -f "$study.asked" ] || mv "$study.asked" "$study/made-with"
{ touch "$handed/taken" && rm -rf "$handed/tls" "$handed/transcript.key"; } 2> /dev/null || true
if [ -f "$study/made-with" ] && [ "$(cat "$study/made-with")" != "$asked" ]; then
    echo "the study stays as it was made ($(cat "$study/made-with")), whatever the variables say now ($asked): what" \
        "participants agreed to can't be changed. For another one choose another name (SORDINO_STUDY)" >&2
fi
# What drives a cluster of Ray runs on a node of it.
[ -z "${RAY_ADDRESS:-}" ] || first sh /opt/ray-node.sh coordinator
supervised sordino serve "$study" --json
