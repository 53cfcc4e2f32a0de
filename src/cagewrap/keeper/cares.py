"""Which work goes with a cage's messages, and in which order."""

from __future__ import annotations

from collections.abc import Callable

from cagewrap.keeper.brokered import Brokered
from cagewrap.keeper.care import Care
from cagewrap.keeper.claudehome import ClaudeHome
from cagewrap.keeper.container import Container
from cagewrap.keeper.conversations import Conversations
from cagewrap.keeper.gitcare import GitCare
from cagewrap.keeper.heldback import HeldBack
from cagewrap.keeper.login import Login
from cagewrap.keeper.loop import Loop
from cagewrap.keeper.ownprogram import Whose
from cagewrap.keeper.pihome import PiHome
from cagewrap.keeper.request import Request
from cagewrap.model import LoginMode
from cagewrap.paths import Paths
from cagewrap.sessions import Record
from cagewrap.transcripts import PI


def make_cares(
    loop: Loop,
    record: Record,
    paths: Paths,
    container: Container,
    log: Callable[[str], None],
    whose: Whose,
) -> tuple[Care, ...]:
    """All of one cage. The container need not run yet. whose: of which build programs are."""
    login = Login(loop, record, paths, log, whose)
    return (
        login,
        Brokered(loop, record, paths, container, login, log, whose),
        *_claude_cares(record, paths, login, log),
        GitCare(loop, record, paths, container, log),
        HeldBack(loop, record, paths, container, log),
    )


def _claude_cares(
    record: Record, paths: Paths, login: Login, log: Callable[[str], None]
) -> tuple[Care, ...]:
    def is_brokered(request: Request) -> bool:
        return login.plan(request).mode is LoginMode.BROKER

    if not record.claude:
        return ()
    conversations = Conversations(record, paths, log)
    return (
        conversations,
        Conversations(record, paths, log, PI),
        ClaudeHome(record, paths, log, is_brokered, conversations.is_our_slug),
        PiHome(record, paths, log),
    )
