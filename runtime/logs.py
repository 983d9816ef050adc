"""Logs: on standard error, never on standard output, which belongs to the verb's result."""

from __future__ import annotations

import logging
import os
import sys


def _load_structlog_without_rich() -> None:
    """structlog loads rich to render tracebacks, which we never show: 5 MB of resident memory in every process."""
    hide = "structlog" not in sys.modules and "rich" not in sys.modules
    if hide:
        sys.modules["rich"] = None  # type: ignore[assignment]  # how Python marks a module as not importable
    try:
        import structlog  # noqa: F401  # loaded here, imported below
    finally:
        if hide:
            del sys.modules["rich"]


_load_structlog_without_rich()

import structlog  # noqa: E402  # loaded above

from runtime.text import peer_text  # noqa: E402  # after structlog


def _plain_line(logger: object, name: str, message: structlog.types.EventDict) -> str:
    """``14:52:07  warning: what happened (path: roster.json)``; the verbs' own plain lines begin the same way."""
    at, level, said = message.pop("timestamp"), message.pop("level"), message.pop("event")
    if message.pop("exc_info", None) and (error := sys.exc_info()[1]) is not None:
        message["error"] = f"{type(error).__name__}: {error}"
    more = ", ".join(f"{key}: {value}" for key, value in message.items())
    line = f"{level}: {said}" + (f" ({more})" if more else "")
    # Parts of it come from another machine, which must neither begin a line nor control a terminal.
    return f"{at}  " + "".join(one if one.isprintable() else " " for one in line)


def _shown_safely(logger: object, name: str, message: structlog.types.EventDict) -> structlog.types.EventDict:
    """Reasons from a coordinator or a participant are quoted unchanged; on a terminal they must remain text."""
    return {key: peer_text(value) if isinstance(value, str) else value for key, value in message.items()}


class _OthersLines(logging.Handler):
    """Messages of libraries that use Python's own logging (uvicorn, gRPC, asyncio), in our format."""

    def emit(self, record: logging.LogRecord) -> None:
        more: dict[str, object] = {"logger": record.name}
        if record.exc_info and (error := record.exc_info[1]) is not None:
            more["error"] = f"{type(error).__name__}: {error}"
            if not sys.stderr.isatty():
                more["exc_info"] = record.exc_info
        try:
            structlog.get_logger().log(record.levelno, record.getMessage(), **more)
        except Exception:  # as its base class does: a message that can't be written must not end the process
            self.handleError(record)


def configure_logs(
    *,
    lowest: int = logging.INFO,
    plain: bool = False,
    terminal_line: structlog.types.Processor | None = None,
    others: bool = True,
) -> None:
    """Write one line a message: for people on a terminal, as JSON elsewhere.

    Args:
        lowest: the least severe level that is written; warnings where the terminal shows a panel.
        plain: lines for people elsewhere too, beside the plain lines of a verb.
        terminal_line: renders a line on a terminal, instead of structlog's renderer.
        others: libraries' warnings too.
    """
    # gRPC's C code writes lines in another format; what they say is also raised as an error.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    terminal = sys.stderr.isatty()
    people = terminal or plain
    renderer: structlog.types.Processor = structlog.processors.JSONRenderer()
    if terminal:
        renderer = terminal_line or structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    elif plain:
        renderer = _plain_line
    root = logging.getLogger()
    for before in [one for one in root.handlers if isinstance(one, _OthersLines)]:
        root.removeHandler(before)
    if others:
        root.addHandler(_OthersLines(logging.WARNING))
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if people else "iso", utc=not people),
            *([_shown_safely] if people else [structlog.processors.format_exc_info]),  # JSON escapes all of it
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(lowest),
        # Looked up at each message: a live panel redirects sys.stderr while it is shown.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )


def log_warnings_only() -> None:
    """In a program of somebody else: warnings as plain lines, unless that program has configured structlog itself."""
    if not structlog.is_configured():
        configure_logs(lowest=logging.WARNING, plain=True, terminal_line=_plain_line, others=False)
