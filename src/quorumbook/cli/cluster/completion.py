"""``quorumbook completion``: what a shell reads to complete commands, options and names."""

from __future__ import annotations

import click

_HINTS = {
    "bash": 'add to ~/.bashrc:  eval "$(quorumbook completion bash)"',
    "zsh": 'add to ~/.zshrc:  eval "$(quorumbook completion zsh)"',
    "fish": "run:  quorumbook completion fish > ~/.config/fish/completions/quorumbook.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(list(_HINTS)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands, options and names in a shell."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    root = ctx.find_root().command
    click.echo(kind(root, {}, "quorumbook", "_QUORUMBOOK_COMPLETE").source())
    click.echo(_HINTS[shell], err=True)
