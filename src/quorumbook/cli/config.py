"""``quorumbook config``: every option, its value and where the value comes from."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand, Commands

if TYPE_CHECKING:
    from quorumbook.config import Settings
    from quorumbook.config.load import Setting
    from quorumbook.options import Value


@click.group(cls=Commands)
def config() -> None:
    """Show every option and where its value comes from."""


@config.command(cls=ClusterCommand, has_peer_file=True)
@click.option("--changed", is_flag=True, help="Only options that somebody set.")
@click.option("--explain", is_flag=True, help="Say what each option is for.")
@click.argument("pattern", default="")
@click.pass_obj
def show(call: Call, changed: bool, explain: bool, pattern: str) -> None:
    """Show the options whose name contains PATTERN."""
    call.show_warnings()
    columns = ["option", "value", "source"]
    if explain:
        columns += ["peer_key", "help"]
    rows = [
        {
            "option": setting.option.key,
            "value": shown_value(call.settings, setting),
            "source": setting.source,
            "peer_key": setting.option.peer_key,
            "help": setting.option.help,
        }
        for setting in call.settings
        if pattern in setting.option.key and not (changed and setting.is_default)
    ]
    call.output.rows(
        [{column: row[column] for column in columns} for row in rows],
        columns,
        empty="no option matches; `quorumbook config show` lists all",
    )


def shown_value(settings: Settings, setting: Setting) -> Value:
    """Return a value without what only its owner may know: people send what they see here."""
    from quorumbook.auth.plugins import is_built_in
    from quorumbook.env.shown import HIDDEN, shown

    option, value = setting.option, setting.value
    if option.key == "metadata.uri":
        return shown(str(value))
    if option.name != "auth_settings" or not value:
        return value
    name = settings.text(f"{option.section}.auth_plugin")
    return value if is_built_in(name) and os.sep in str(value) else HIDDEN
