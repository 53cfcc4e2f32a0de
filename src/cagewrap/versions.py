"""What a shim answers without a cage: which version its agent is.

Harnesses ask at their start, in any directory, and give an agent a second or two. The program that
answers is the one of this machine that the cage would have.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from cagewrap import agentspec, launch, proc, protected, sessions
from cagewrap.agentnames import AGENTS, ASK_VERSION, ON_HOST
from cagewrap.childenv import search_path
from cagewrap.elf import Elf, read_program_at
from cagewrap.errors import AgentNotExecutableError
from cagewrap.keeper.choice import Chooser
from cagewrap.programs import Program

_CWD = "/"
"""Where it runs: not in the project, where an agent may have left settings for it."""


def say_version(flags: list[str], agent: str, word: str) -> None:
    """Become the agent's program of this machine if all it is asked is its version; else return.

    Raises CagewrapError as the same flags would with any other word.
    """
    if word not in ASK_VERSION.get(agent, ()):
        return
    plan, _ = launch.make_plan(flags)
    written = sessions.written_by_cages(plan.paths) | _current_project(plan)
    program = _find(plan, agent, written)
    if program is None:
        return
    env = _environment(plan.env, program, written)
    started = [program.interpreter, program.path] if program.interpreter else [program.path]
    try:
        proc.replace([*started, word], env=env, cwd=_CWD)
    except OSError as error:
        raise AgentNotExecutableError(
            f"{program.path} cannot be run: {error.strerror or error}.", f"install {agent} again"
        ) from error


def _find(plan: launch.Plan, agent: str, written: set[str]) -> Program | None:
    """None where the image's own would be run, or a script of which nobody knows what it does."""
    named = {one.name: one.program for one in plan.settings.agents}
    choice = named.get(agent, agentspec.AUTO if agent in AGENTS else agentspec.IMAGE)
    if choice == agentspec.IMAGE:
        return None
    chooser = Chooser(
        plan.owner.home,
        plan.settings.image,
        plan.paths,
        written=lambda: written,
        is_loan=lambda _: False,
        log=lambda _: None,
    )
    path, home = plan.env.get("PATH", ""), plan.env.get("HOME", "")
    found = chooser.find_named(agent, choice, path, home)
    if found is None or found.interpreter or isinstance(read_program_at(found.path), Elf):
        return found
    return None


def _current_project(plan: launch.Plan) -> set[str]:
    """Its agent may not have had a cage yet. What can never be a project, such as HOME, is none."""
    project = plan.project.path
    holds_home = protected.lies_in(os.path.realpath(plan.owner.home), project)
    return set() if holds_home else {project}


def _environment(env: Mapping[str, str], program: Program, written: set[str]) -> dict[str, str]:
    return {
        **env,
        "PATH": search_path(env, written),
        "PWD": _CWD,
        ON_HOST: program.path,
    }
