"""The entry of a frozen program, without one: what it makes of its arguments and environment."""

import pytest

from cagewrap.ahead import self_command
from cagewrap.frozen import INTERNAL, is_own_process, restore_environment

BUNDLE = "/opt/cagewrap/_internal"
PROGRAM = "/opt/cagewrap/cagewrap"
BOOTLOADER = {
    "_PYI_APPLICATION_HOME_DIR": BUNDLE,
    "_PYI_ARCHIVE_FILE": PROGRAM,
    "_PYI_LINUX_PROCESS_NAME": "cagewrap",
    "_PYI_PARENT_PROCESS_LEVEL": "1",
}


@pytest.mark.parametrize(
    ("found", "restored"),
    [
        ({"LD_LIBRARY_PATH": BUNDLE}, {}),
        (
            {"LD_LIBRARY_PATH": f"{BUNDLE}:/a:/b", "LD_LIBRARY_PATH_ORIG": "/a:/b"},
            {"LD_LIBRARY_PATH": "/a:/b"},
        ),
        # Of another frozen program, left over: the bootloader did not write it.
        (
            {"LD_LIBRARY_PATH": BUNDLE, "LD_LIBRARY_PATH_ORIG": "/old"},
            {"LD_LIBRARY_PATH_ORIG": "/old"},
        ),
        ({"LD_LIBRARY_PATH": "/a"}, {"LD_LIBRARY_PATH": "/a"}),
        ({}, {}),
    ],
)
def test_environment_is_what_it_was(found: dict[str, str], restored: dict[str, str]) -> None:
    environ = {"HOME": "/home/me", **BOOTLOADER, **found}
    restore_environment(environ, BUNDLE)
    assert environ == {"HOME": "/home/me", **restored}


def test_own_processes_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.frozen", True, raising=False)
    monkeypatch.setattr("sys.executable", PROGRAM)
    for words in (("keeper", "3"), ("image", "first"), ("refresh", ""), ("broker", "-")):
        assert is_own_process(self_command(*words, with_site=True), PROGRAM)


@pytest.mark.parametrize(
    "argv",
    [
        [PROGRAM],
        [PROGRAM, INTERNAL],
        [PROGRAM, "--", INTERNAL, "keeper"],
        [PROGRAM, INTERNAL, "keeper", "3", "--", "true"],
        ["cagewrap", INTERNAL, "keeper", "3"],
        ["/usr/local/bin/claude", INTERNAL, "keeper", "3"],
    ],
)
def test_what_a_person_writes_is_not_one(argv: list[str]) -> None:
    assert not is_own_process(argv, PROGRAM)
