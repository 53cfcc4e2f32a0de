"""`cagewrap shim`: a file that behaves as an agent, for harnesses that take one program."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping

import click

from cagewrap import flags as table
from cagewrap import sessions, shimfile
from cagewrap.agentnames import AGENTS, PROGRAM
from cagewrap.cli.completing import agent_words
from cagewrap.config import read_config
from cagewrap.errors import UsageError
from cagewrap.flags import Kind, parse_wrap_flags, shown
from cagewrap.ourselves import NAME, is_ours
from cagewrap.paths import paths_from_env
from cagewrap.report import envelope
from cagewrap.values import nearest

_OUTPUT = ("-o", "--output")


class _Command(click.Command):
    """A command whose words may be flags of the wrap path, too, which the one table knows."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take those out; click sees the rest."""
        ctx.meta["cagewrap.flags"], rest = split_flags(args)
        return super().parse_args(ctx, rest)


def split_flags(words: list[str]) -> tuple[list[str], list[str]]:
    """What stands before `--` when an agent is run, and the words that are not of it."""
    rows = {row.flag: row for row in table.FLAGS}
    ours: list[str] = []
    rest: list[str] = []
    left = iter(words)
    for word in left:
        name, sign, _ = word.partition("=")
        row = rows.get(name)
        taken = rest if row is None else ours
        taken.append(word)
        if (row is not None and row.kind is not Kind.SWITCH and not sign) or word in _OUTPUT:
            taken.extend([one for one in [next(left, None)] if one is not None])
    return ours, rest


@click.command(cls=_Command, options_metavar="[FLAGS]...")
@click.argument("agent", shell_complete=agent_words)
@click.option(
    "-o", "--output", type=click.Path(), metavar="PATH", default="", help="Where to write it."
)
@click.option("--force", is_flag=True, help="Also in the place of another file.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object on stdout.")
@click.pass_context
def shim(ctx: click.Context, *, agent: str, output: str, force: bool, as_json: bool) -> None:
    """Write a file that behaves as AGENT and runs it in a cage, for a harness that takes one path.

    AGENT is an agent's name, or the absolute path of a program in the cage. FLAGS are those of
    `cagewrap [FLAGS] -- AGENT`, such as --session-env NAME and --image REF. Without -o, the file's
    text goes to stdout.
    """
    flags: list[str] = ctx.meta["cagewrap.flags"]
    env = dict(os.environ)
    paths = paths_from_env(env, os.getuid())
    _check_flags(flags)
    _check_agent(agent, paths.config_file)
    program = own_program(sys.argv[0], env)
    content = shimfile.shim_text(program, agent, flags)
    if output:
        shimfile.refuse_agents_place(output, sessions.written_by_cages(paths))
        shimfile.write_shim(output, content, program=program, force=force)
    if as_json:
        text = content.decode(errors="backslashreplace")
        path = os.path.abspath(output) if output else ""
        click.echo(envelope(None, shim={"agent": agent, "path": path, "text": text}))
    elif not output:
        sys.stdout.buffer.write(content)


def _check_flags(flags: list[str]) -> None:
    """What would be wrong at every message is said now."""
    given = parse_wrap_flags(flags)
    if "--" in flags:
        raise UsageError("A shim's flags cannot have the word --.", "write it as --FLAG=--")
    if given.dry_run:
        raise UsageError("--dry-run is nothing for a shim: it would never run its agent.", "")


def _check_agent(agent: str, config_file: str) -> None:
    if "/" in agent:
        if not agent.startswith("/"):
            raise UsageError(
                f"{shown(agent)} is a relative path.", f"cagewrap shim {os.path.abspath(agent)}"
            )
        if is_ours(agent):
            raise UsageError(
                f"{shown(agent)} runs cagewrap itself.", "name the agent: cagewrap shim claude"
            )
        return
    config = read_config(config_file)
    levels = (config.values, *(one.values for one in config.projects))
    named = [one.name for level in levels for one in level.get(table.AGENTS) or ()]
    known = dict.fromkeys((*AGENTS, *named))
    if agent not in known:
        raise UsageError(
            f"{shown(agent)} is no agent that cagewrap knows{nearest(agent, tuple(known))}.",
            f"give the path that its program has in the cage, or name it in {config_file}: "
            f'[agents.{agent}] program = "auto"',
        )


def own_program(called: str, env: Mapping[str, str]) -> str:
    """The absolute path by which cagewrap is run; symlinks stay, since updates turn those.

    called: `sys.argv[0]`. A single file says its own path, since `called` is what it unpacked.
    """
    search_path = env.get("PATH", "")
    beside = os.path.join(os.path.dirname(sys.executable), NAME)
    found = called if "/" in called else shutil.which(called, path=search_path)
    if called.endswith(".py"):  # python -m cagewrap
        found = ""
    for path in (env.get(PROGRAM, ""), found, beside, shutil.which(NAME, path=search_path)):
        if path and os.access(path, os.X_OK) and not os.path.isdir(path):
            return os.path.abspath(path)
    raise UsageError(
        "cagewrap has no program of its own here, which the shim could run.",
        "put cagewrap on PATH, then: cagewrap shim …",
    )
