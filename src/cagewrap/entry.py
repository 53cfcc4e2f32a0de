"""The program's entry: split the command line, wrap or run a verb, and report any failure."""

from __future__ import annotations

import os
import sys

from cagewrap.errors import CagewrapError


def main() -> None:
    """Run cagewrap on the process's own arguments; never returns."""
    arguments = _as_called()
    at = wrapped_command_index(arguments)
    try:
        if at is None:
            from cagewrap.cli import run

            code = run(arguments)
        else:
            _wrap(arguments[:at], arguments[at + 1 :])
            code = 0
    except CagewrapError as error:
        report(error, traceback="--debug" in arguments[:at])
        code = error.exit_code
    except KeyboardInterrupt:
        from cagewrap.shim import end_by_signal

        end_by_signal(2)
        code = 130
    except Exception as error:  # noqa: BLE001 - the one boundary: a bug still names itself
        report_bug(error, traceback="--debug" in arguments[:at])
        code = 123
    leave(code)


def internal() -> None:
    """Run a process of cagewrap's own: `keeper FD` and `image first`, started by a shim, or
    `refresh CLAUDE`, by a keeper. Nobody else has a use for them."""
    verb, word = sys.argv[-2:]
    if verb == "refresh":
        from cagewrap.refresh import main as refresh_main

        os._exit(refresh_main(word))
    if verb == "image":
        from cagewrap.image.first import main as image_main

        os._exit(image_main())
    if verb == "broker":
        from cagewrap.egress.broker import main as broker_main

        broker_main()
        os._exit(0)
    from cagewrap.keeper.main import main as keeper_main

    keeper_main(int(word))
    os._exit(0)


def _as_called() -> list[str]:
    """The command line; as a shim file would say it where a symlink to us is named for an agent."""
    name, arguments = sys.argv[0].rpartition("/")[2], sys.argv[1:]
    if name != "cagewrap":
        from cagewrap.agentnames import AGENTS, AS

        if name in AGENTS:
            return [AS, name, "--", *arguments]
    return arguments


def _wrap(flags: list[str], command: list[str]) -> None:
    """Run an agent's command; never returns unless it raises CagewrapError."""
    _refuse_round()
    if flags[:1] == ["--as"]:
        flags, command = flags[2:], [*flags[1:2], *command]
        if len(command) == 2 and command[1] in ("--version", "-v", "-V"):
            from cagewrap.versions import say_version

            say_version(flags, *command)
    from cagewrap.wrap import wrap

    wrap(flags, command)


def _refuse_round() -> None:
    """Stop what would start itself again for ever: an agent's program of this machine that comes
    back to us, by whatever script."""
    program = os.environ.get("CAGEWRAP_ON_HOST", "")
    if program:
        from cagewrap.errors import UnsupportedError

        raise UnsupportedError(
            f"{program}, which cagewrap runs on this machine as an agent's own program, runs "
            "cagewrap.",
            "name the agent's program: program = PATH in [agents.NAME], claude = PATH in [login]",
        )


def leave(code: int) -> None:
    """Exit without running finalisers, after what was printed has left."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue
    os._exit(code)


def wrapped_command_index(arguments: list[str]) -> int | None:
    """Where the `--` stands that begins the agent's command; None for a verb (`cagewrap ls`)."""
    if not arguments or not arguments[0].startswith("-") or "--" not in arguments:
        return None
    return arguments.index("--")


def report(error: CagewrapError, *, traceback: bool) -> None:
    """Say on stderr what is wrong, and what mends it."""
    text = f"cagewrap: {error.message}\n"
    if error.hint:
        text += f"  fix: {error.hint}\n"
    if traceback:
        text += _traceback(error)
    _write_stderr(text)


def report_bug(error: Exception, *, traceback: bool) -> None:
    """Say on stderr that cagewrap itself is at fault."""
    text = f"cagewrap: a bug: {type(error).__name__}: {error}\n  fix: report it with --debug\n"
    _write_stderr(text + (_traceback(error) if traceback else ""))


def _traceback(error: Exception) -> str:
    import traceback

    return "".join(traceback.format_exception(error))


def _write_stderr(text: str) -> None:
    from cagewrap import protocol

    try:
        os.write(2, protocol.cut(text.encode(errors="backslashreplace")))
    except OSError:
        return
