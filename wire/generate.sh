#!/bin/sh
# Write the stubs of proto/*.proto: wire/generate.sh [FOLDER]
#
# FOLDER (default: the checkout) receives wire/<name>_pb2.py and its .pyi: messages only, since both ends have handlers
# of their own for the methods (vectors travel as raw bytes). PYTHON is the interpreter that has grpcio-tools (default:
# .venv-proto, which `make proto` builds). The proto path is mapped, wire=proto, so that generated modules lie in `wire`.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv-proto/bin/python}
folder=${1:-.}
if [ ! -x "$python" ]; then
    echo "wire/generate.sh: no $python here; run \`make proto\`" >&2
    exit 2
fi
exec "$python" -m grpc_tools.protoc -Iwire=proto \
    --python_out="$folder" --pyi_out="$folder" proto/*.proto
