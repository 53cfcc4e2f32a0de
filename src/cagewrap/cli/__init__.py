"""The verbs of the command line, one module each, imported when they are used."""

from __future__ import annotations

import importlib

import click

from cagewrap import __version__
from cagewrap.errors import CagewrapError, InternalError, UsageError
from cagewrap.report import envelope

# verb -> (module below cagewrap.cli, attribute)
VERBS = {
    "completion": ("completion", "completion"),
    "config": ("config", "config"),
    "doctor": ("doctor", "doctor"),
    "gc": ("sessions", "gc"),
    "help": ("help", "help_"),
    "image": ("image", "image"),
    "login": ("login", "login"),
    "logout": ("login", "logout"),
    "logs": ("sessions", "logs"),
    "ls": ("ls", "ls"),
    "man": ("man", "man"),
    "port": ("sessions", "port"),
    "recreate": ("sessions", "recreate"),
    "review": ("review", "review"),
    "rm": ("sessions", "rm"),
    "shim": ("shim", "shim"),
    "shell": ("sessions", "shell"),
    "stop": ("sessions", "stop"),
    "take-back": ("sessions", "take_back"),
}


_OPTIONS = ("-h", "--help", "--version")


class LazyGroup(click.Group):
    """A group that imports a verb's module only when that verb is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The verbs, in order."""
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The verb's command, or None."""
        place = VERBS.get(cmd_name)
        if place is None:
            return None
        module = importlib.import_module(f"cagewrap.cli.{place[0]}")
        command: click.Command = getattr(module, place[1])
        return command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The flags of the wrap path come from the table that parses them."""
        from cagewrap.flags import wrap_help

        super().format_options(ctx, formatter)
        with formatter.section("Flags before `--`"):
            formatter.write(wrap_help().partition("Flags:\n")[2])


def _show_version(ctx: click.Context, _option: click.Parameter, value: bool) -> None:  # noqa: FBT001
    if value:
        from cagewrap.buildinfo import describe_build, read_build

        click.echo(f"cagewrap {__version__} ({describe_build(read_build())})")
        ctx.exit()


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    subcommand_metavar="[FLAGS] -- AGENT [ARGS]...  |  VERB [ARGS]...",
    options_metavar="",
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version,
    help="Show the version, the build and the commit, and exit.",
)  # fmt: skip
def cagewrap() -> None:
    """Run a coding agent in a rootless podman container of its own.

    cagewrap -- claude -p hello   runs `claude -p hello` in the cage of this directory. Arguments,
    stdin, stdout, stderr, signals and exit status pass unchanged; the agent sees the project and
    nothing else of the machine. The cage is kept for the next message.
    """


def run(arguments: list[str]) -> int:
    """Run a verb. Raises CagewrapError; returns the exit code."""
    if arguments[:1] and arguments[0].startswith("-") and arguments[0] not in _OPTIONS:
        raise UsageError(
            f"{arguments[0]!r} is a flag for an agent's command, and there is no `--` with the "
            "command after it.",
            f"cagewrap {arguments[0]} … -- claude",
        )
    try:
        words = arguments or ["--help"]
        code = cagewrap.main(args=words, prog_name="cagewrap", standalone_mode=False)
    except CagewrapError as error:
        _report_as_json(error, arguments)
        raise
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.Abort as error:
        raise KeyboardInterrupt from error
    except click.ClickException as error:
        hint = "cagewrap --help"
        if isinstance(error, click.UsageError) and error.ctx is not None:
            hint = f"{error.ctx.command_path} --help"
        usage = UsageError(error.format_message(), hint)
        _report_as_json(usage, arguments)
        raise usage from error
    except BrokenPipeError:
        raise
    except OSError as error:
        from cagewrap.sessions import explain_os_error

        explained = explain_os_error(error)
        _report_as_json(explained, arguments)
        raise explained from error
    except Exception as error:
        bug = InternalError(f"A bug: {type(error).__name__}: {error}.", "report it with --debug")
        _report_as_json(bug, arguments)
        raise
    return code if isinstance(code, int) else 0


def _report_as_json(error: CagewrapError, arguments: list[str]) -> None:
    """The envelope of a failure, once, when it was asked for (after `--` it is an agent's word)."""
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if "--json" in ours and not error.is_reported:
        click.echo(envelope(error))
