"""How a mount is written: podman's --mount syntax, as one text or as a table of the file."""

from __future__ import annotations

from collections.abc import Mapping

from cagewrap.model import Mount
from cagewrap.values import BadValueError, item_text, nearest, parse_path


def parse_mount(text: str) -> Mount:
    """`PATH[,ro|rw]` or `source=PATH,target=PATH[,ro|rw]`, fields quoted as in podman's --mount."""
    fields = split_csv(text)
    found: dict[str, str] = {}
    for place, one in enumerate(fields):
        name, value = _mount_field(one, is_first=place == 0)
        if name in found:
            raise BadValueError(f"says {name} twice" if name != "mode" else "says ro and rw")
        found[name] = value
    if "source" not in found:
        raise BadValueError("names no source: give PATH or source=PATH")
    source = parse_path(found["source"])
    return Mount(
        source=source,
        target=parse_path(found.get("target", source)),
        readonly=found.get("mode", "ro") == "ro",
        why="asked for",
    )


def _mount_field(text: str, *, is_first: bool) -> tuple[str, str]:
    """The field's name and value; the mode is `ro` or `rw`."""
    if is_first and (text.startswith(("/", "~/")) or text == "~"):
        return "source", text
    name, sign, value = text.partition("=")
    if name in ("source", "src"):
        return "source", value
    if name in ("target", "destination", "dst"):
        return "target", value
    if name in ("ro", "readonly", "rw") and (not sign or value in ("true", "false")):
        return "mode", "ro" if (name != "rw") == (value != "false") else "rw"
    if text == "type=bind":
        return "type", value
    known = ("source", "target", "ro", "rw")
    raise BadValueError(
        f"has the field {name!r}, and may have {', '.join(known)}{nearest(name, known)}"
        if name not in ("type", "ro", "readonly", "rw")
        else f"has {text!r}: only bind mounts, with ro or rw"
    )


def split_csv(text: str) -> list[str]:
    """The fields between commas; a field in `"` may hold commas, and `""` for one quote."""
    fields: list[str] = []
    rest = text
    while True:
        if rest.startswith('"'):
            field, rest = _quoted(rest)
            if rest and not rest.startswith(","):
                raise BadValueError("has text after a closing quote")
        else:
            end = rest.find(",")
            field, rest = (rest, "") if end < 0 else (rest[:end], rest[end:])
            if '"' in field:
                raise BadValueError('has a " inside a field: quote the whole field and double it')
        fields.append(field)
        if not rest:
            return fields
        rest = rest[1:]


def _quoted(text: str) -> tuple[str, str]:
    """The quoted field `text` starts with, and what follows its closing quote."""
    field, place = "", 1
    while True:
        end = text.find('"', place)
        if end < 0:
            raise BadValueError("has a quote that is not closed")
        field += text[place:end]
        if text[end + 1 : end + 2] != '"':
            return field, text[end + 1 :]
        field, place = field + '"', end + 2


def mount_text(found: object) -> str:
    """One item of `mount` in the file: a text as for --mount, or a table."""
    if not isinstance(found, Mapping):
        return item_text(found)
    known = ("source", "target", "ro", "rw")
    fields: list[str] = []
    for name, value in found.items():
        if name not in known:
            raise BadValueError(f"has the key {name!r}{nearest(str(name), known)}")
        wanted = str if name in ("source", "target") else bool
        if type(value) is not wanted:
            raise BadValueError(
                f"needs a {'text' if wanted is str else 'true or false'} for {name}"
            )
        shown = value if wanted is str else str(value).lower()
        fields.append('"' + f"{name}={shown}".replace('"', '""') + '"')
    if not fields:
        raise BadValueError("is an empty table: give source")
    return ",".join(fields)
