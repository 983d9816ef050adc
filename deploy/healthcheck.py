"""Whether a container's process does its work: run by its HEALTHCHECK, with nothing but the standard library.

    python3 -IS healthcheck.py http    the coordinator's /readyz answers 200
    python3 -IS healthcheck.py file    the file of SORDINO_HEALTH_FILE was touched within the last minute

SORDINO_HTTP_PORT is the port where the study has another one than 9464, as http_listen in its study.toml says.
"""

import os
import sys
import time

READY = ("127.0.0.1", int(os.environ.get("SORDINO_HTTP_PORT", "9464")))
OLDEST_S = 60.0


def main(kind: str) -> int:
    """Returns 0 when it does, else 1 after printing the reason."""
    try:
        if kind == "http":
            import http.client

            connection = http.client.HTTPConnection(*READY, timeout=4)
            connection.request("GET", "/readyz")
            answer = connection.getresponse()
            if answer.status != 200:
                print(answer.read(500).decode("utf-8", "replace"))
                return 1
            return 0
        age_s = time.time() - os.stat(os.environ["SORDINO_HEALTH_FILE"]).st_mtime
        if age_s > OLDEST_S:
            print(f"it hasn't done anything for {age_s:.0f} s")
            return 1
    except (OSError, KeyError) as error:
        print(f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
