# Removes from an environment what nothing runs: tests, headers and sources of packages. Then compiles the rest, since
# the images' file systems are read-only and every start would compile it again.
set -eu
site=$(ls -d "$1"/lib/python3*/site-packages)
find "$site" -type d \( -name tests -o -name test -o -name include \) -prune -exec rm -rf {} +
find "$site" -type f \( -name '*.pyi' -o -name '*.pxd' -o -name '*.pyx' -o -name '*.c' -o -name '*.h' -o -name '*.a' \) -delete
rm -rf "$site"/numpy/f2py "$site"/numpy/distutils
# Only what is not compiled yet.
PYTHONDONTWRITEBYTECODE= "$1"/bin/python -m compileall -q "$site" > /dev/null || true
