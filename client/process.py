"""The entry of the client process, which takes the place of the command once host.toml is checked.

`sordino join` replaces itself with this module by exec, so the process that runs for hours loads neither the libraries
of the command line nor those that check settings: 22 MB less on a small device. The process id stays the same.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Final, NoReturn

from client.settings import HostSettings
from runtime.failure import ExitCode, Failure
from runtime.health_file import VARIABLE

_CODE: Final = "import sys; sys.path.insert(0, {root!r}); from client.process import main; main({fd})"


def become(settings: HostSettings, *, as_json: bool = False, service: bool = False) -> NoReturn:
    """Replace this process by the client with these settings. Flushes output first; does not return.

    ``service``: run as a system service that reports its state to systemd.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:  # a file and not a pipe: settings of any length fit
        file.write(b"%d%d" % (as_json, service) + settings.to_json().encode())
        file.flush()
        file.seek(0)
        os.set_inheritable(file.fileno(), True)
        root = str(Path(__file__).resolve().parent.parent)
        # -P: a file named client.py in the working directory must not be taken for this package.
        code = _CODE.format(root=root, fd=file.fileno())
        # What follows the code is only for people who list processes.
        arguments = [sys.executable, "-P", "-c", code, "sordino", "join", str(settings.host.journal.parent)]
        os.execv(sys.executable, arguments)


def main(settings_fd: int) -> NoReturn:
    """Run the client with the settings in an open file; ends the process with its exit code."""
    from runtime.processes import leave_no_core, use_few_arenas

    leave_no_core()  # again: an exec drops the mark that forbids core files
    with open(settings_fd, "rb") as file:
        text = file.read().decode()
    as_json, as_service, settings = text[0] == "1", text[1] == "1", HostSettings.from_json(text[2:])
    import runtime.logs  # first: it loads structlog without rich
    from client.log_lines import join_line, use_service_lines
    from runtime.service_notify import Notifier

    runtime.logs.configure_logs(terminal_line=join_line)
    service = None
    if as_service:
        service = Notifier()
        use_service_lines(service)
    elif os.environ.get(VARIABLE):  # a container whose health is checked, and no systemd
        service = Notifier({})
    use_few_arenas()
    from client.participant_host import join

    code, message = int(ExitCode.INTERNAL), ""
    try:
        code = join(settings, service)
    except Failure as error:
        code, message = int(error.code), ". ".join(filter(None, (error.message, error.suggestion)))
    except Exception as error:
        if os.environ.get("SORDINO_TRACEBACK"):
            raise
        message = f"a fault in sordino: {type(error).__name__}. SORDINO_TRACEBACK=1 shows where."
    if message:
        print(f"sordino join: {message.rstrip('.')}.", file=sys.stderr)
        if service is not None:
            service.status(message)
    if as_json:
        body = {
            "host": settings.host.name,
            "study": settings.study.name,
            "participants": len(settings.participants),
            "exit_code": code,
        }
        print(json.dumps(body))
    sys.stdout.flush()
    sys.exit(code)
