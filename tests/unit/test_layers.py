"""Layers of an image made into one: what a container sees through them is the same."""

import io
import tarfile

import pytest

from cagewrap.fromsession import group_without, passwd_without
from cagewrap.layers import merge


def layer(*entries):
    """An archive: (name, content) for a file, (name,) for a directory, (name, "->", target) for a
    symlink, (name, "=", target) for a hard link."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, *rest in entries:
            member = tarfile.TarInfo(name)
            data = b""
            if not rest:
                member.type, member.mode = tarfile.DIRTYPE, 0o750
            elif rest[0] in ("->", "="):
                member.type = tarfile.SYMTYPE if rest[0] == "->" else tarfile.LNKTYPE
                member.linkname = rest[1]
            else:
                data = rest[0]
                member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    file.seek(0)
    return file


def merged(*layers, **options):
    out = io.BytesIO()
    merge(layers, out, **options)
    out.seek(0)
    return tarfile.open(fileobj=out)


def seen(tar):
    found = {}
    for member in tar.getmembers():
        if member.isdir():
            found[member.name] = None
        elif member.isreg():
            found[member.name] = tar.extractfile(member).read()
        else:
            found[member.name] = ("->" if member.issym() else "=") + member.linkname
    return found


def test_the_newer_layer_holds():
    tar = merged(
        layer(("opt",), ("opt/a", b"old"), ("opt/b", b"b")),
        layer(("opt",), ("opt/a", b"new"), ("opt/c", "->", "a")),
    )
    assert seen(tar) == {"opt": None, "opt/a": b"new", "opt/b": b"b", "opt/c": "->a"}
    assert tar.getmember("opt").mode == 0o750


def test_what_a_newer_layer_deletes_is_gone_and_stays_deleted_from_the_base():
    tar = merged(
        layer(("d",), ("d/x", b"1"), ("d/sub",), ("d/sub/y", b"2"), ("e",), ("e/.wh.z", b"")),
        layer(("d",), ("d/.wh.sub", b"")),
    )
    assert seen(tar) == {"d": None, "d/x": b"1", "d/.wh.sub": b"", "e": None, "e/.wh.z": b""}


def test_what_was_deleted_and_made_again():
    tar = merged(
        layer(("d",), ("d/.wh.file", b""), ("d/.wh.dir", b""), ("d/.wh.was-dir", b"")),
        layer(("d",), ("d/file", b"2"), ("d/dir",), ("d/dir/n", b"3"), ("d/was-dir", b"4")),
    )
    assert seen(tar) == {
        "d": None, "d/file": b"2", "d/dir": None, "d/dir/.wh..wh..opq": b"", "d/dir/n": b"3",
        "d/was-dir": b"4",
    }  # fmt: skip


def test_a_directory_that_hides_its_older_self():
    tar = merged(
        layer(("d",), ("d/old", b"1"), ("d/deep",), ("d/deep/old", b"2"), ("e/.wh..wh..opq", b"")),
        layer(("d",), ("d/.wh..wh..opq", b""), ("d/new", b"3")),
    )
    assert seen(tar) == {
        "d": None, "d/.wh..wh..opq": b"", "d/new": b"3", "e/.wh..wh..opq": b"",
    }  # fmt: skip


def test_a_file_in_the_place_of_a_directory():
    tar = merged(layer(("d",), ("d/x", b"1")), layer(("d", b"a file")))
    assert seen(tar) == {"d": b"a file"}


def test_hard_links_whose_file_a_newer_layer_has_changed():
    tar = merged(
        layer(("a", b"old"), ("b", "=", "a"), ("c", "=", "a")),
        layer(("a", b"new")),
    )
    assert seen(tar) == {"a": b"new", "b": b"old", "c": "=b"}
    tar = merged(layer(("x", b"1"), ("y", "=", "x")))
    assert seen(tar) == {"x": b"1", "y": "=x"}


def test_what_is_left_out():
    layers = (
        layer(("home",), ("home/me",), ("home/me/secret", b"s"), ("home/me/.wh.gone", b"")),
        layer(
            ("srv",), ("srv/mine",), ("srv/mine/project",), ("opt",), ("opt/tool", b"t"),
            ("tmp",), ("tmp/x", b"x"), ("tmpfile", b"k"),
        ),
    )  # fmt: skip
    tar = merged(*layers, drop={"home/me", "srv/mine/project"}, empty={"tmp"})
    assert seen(tar) == {"opt": None, "opt/tool": b"t", "tmp": None, "tmpfile": b"k"}


def test_attributes_are_kept():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("ping")
        member.uid, member.gid, member.mode, member.mtime = 5, 6, 0o4755, 1.5
        capability = b"\1\0\0\2\0\x20\0\0\xff\xfe".decode("utf-8", "surrogateescape")
        member.pax_headers = {"SCHILY.xattr.security.capability": capability}
        tar.addfile(member)
    file.seek(0)
    [found] = merged(file).getmembers()
    assert (found.uid, found.gid, found.mode, found.mtime) == (5, 6, 0o4755, 1.5)
    assert found.pax_headers["SCHILY.xattr.security.capability"] == capability


def test_a_file_that_is_written_anew():
    tar = merged(layer(("etc",), ("etc/x", b"1\n2\n")), rewrite={"etc/x": lambda text: text[2:]})
    assert seen(tar)["etc/x"] == b"2\n"


@pytest.mark.parametrize("uid", [b"", b"1000"])
def test_passwd_of_nobody_in_particular(uid):
    root = b"root:x:0:0:root:/home/me:/bin/bash\nbin:x:2:2::/bin:/x\n"
    after = passwd_without(root + b"me:*:1000:1000::/home/me:/bin/sh\n", b"/home/me", uid)
    assert after.startswith(b"root:x:0:0:root:/root:/bin/bash\nbin:x:2:2::/bin:/x\n")
    assert (b"/home/me" in after) == (uid == b"")
    assert group_without(b"root:x:0:\nme:x:1000:me\nkeep:x:5:me\n", b"1000") == (
        b"root:x:0:\nkeep:x:5:me\n"
    )
