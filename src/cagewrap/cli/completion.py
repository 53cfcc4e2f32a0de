"""`cagewrap completion`: what a shell needs to complete cagewrap's command line."""

from __future__ import annotations

import click

from cagewrap.cli.completing import next_words

SHELLS = ("bash", "zsh", "fish")

_BASH = r"""# Completion of cagewrap in bash: eval "$(cagewrap completion bash)", or as a file
# bash-completion/completions/cagewrap in a directory of data.
_cagewrap() {
    local current=${COMP_WORDS[COMP_CWORD]} at value kind
    COMPREPLY=()
    for ((at = 1; at < COMP_CWORD; at++)); do
        [ "${COMP_WORDS[at]}" = -- ] || continue
        if declare -F _command_offset >/dev/null; then
            _command_offset $((at + 1))
        elif ((COMP_CWORD == at + 1)); then
            mapfile -t COMPREPLY < <(compgen -c -- "$current")
        else
            compopt -o filenames
            mapfile -t COMPREPLY < <(compgen -f -- "$current")
        fi
        return
    done
    while IFS=$'\t' read -r kind value _; do
        case $kind in
            file | dir)
                compopt -o filenames
                [ "$kind" = dir ] && kind=directory
                mapfile -t COMPREPLY < <(compgen -A "$kind" -- "$current")
                ;;
            *) COMPREPLY+=("$(printf %q "$value")") ;;
        esac
    done < <(cagewrap completion bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _cagewrap cagewrap
"""

_ZSH = r"""#compdef cagewrap
# Completion of cagewrap in zsh: a file _cagewrap in a directory of $fpath, or
# eval "$(cagewrap completion zsh)" after compinit.
_cagewrap() {
    local line at=${words[(i)--]}
    local -a fields found
    if ((at < CURRENT)); then
        ((CURRENT -= at))
        words=("${(@)words[at + 1, -1]}")
        _normal
        return
    fi
    for line in "${(@f)$(cagewrap completion zsh -- "${(@)words[2, CURRENT]}" 2>/dev/null)}"; do
        fields=("${(@ps:\t:)line}")
        case $fields[1] in
            file) _files && return ;;
            dir) _files -/ && return ;;
            plain) found+=("${fields[2]//:/\\:}:$fields[3]") ;;
        esac
    done
    _describe cagewrap found
}
if [ "$funcstack[1]" = _cagewrap ]; then
    _cagewrap "$@"
else
    compdef _cagewrap cagewrap
fi
"""

_FISH = r"""# Completion of cagewrap in fish: a file cagewrap.fish in ~/.config/fish/completions, or
# cagewrap completion fish | source
function __cagewrap_complete
    set -l words (commandline --tokenize --cut-at-cursor --current-process)
    set -l current (commandline --current-token --cut-at-cursor)
    if set -l at (contains --index -- -- $words)
        set --erase words[1..$at]
        complete --do-complete (string join ' ' -- (string escape -- $words) "$current")
        return
    end
    for line in (cagewrap completion fish -- $words[2..-1] "$current" 2>/dev/null)
        set -l fields (string split \t -- $line)
        switch $fields[1]
            case file
                __fish_complete_path "$current"
            case dir
                __fish_complete_directories "$current"
            case plain
                printf '%s\t%s\n' $fields[2] "$fields[3]"
        end
    end
end
complete --command cagewrap --no-files --arguments '(__cagewrap_complete)'
"""

_SCRIPTS = dict(zip(SHELLS, (_BASH, _ZSH, _FISH), strict=True))


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- WORD...]")
@click.pass_context
def completion(ctx: click.Context, *, shell: str, words: tuple[str, ...]) -> None:
    """Print the script that makes a shell complete cagewrap's verbs, flags and sessions.

    For bash: eval "$(cagewrap completion bash)". With words after `--`, print what the last of them
    may become.
    """
    if not words:
        click.echo(_SCRIPTS[shell], nl=False)
        return
    group = ctx.find_root().command
    assert isinstance(group, click.Group)  # noqa: S101 - cagewrap is
    *before, incomplete = [word for word in words if word != "="] or [""]
    for one in next_words(before, incomplete, group):
        text = " ".join((one.help or "").split())
        click.echo(f"{one.type}\t{one.value}\t{text}")
