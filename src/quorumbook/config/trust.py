"""Whether a configuration file may name code: a plug-in's module, a script.

Whoever can change such a file runs code as us.  So it must belong to us or to the superuser, and
nobody else may write to it.  A group that only we are in is no one else: many systems give each
user such a group and make files writable for it.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat


def distrust_of(found: os.stat_result) -> str:
    """Say why a file is not to be trusted; "" if it is."""
    if found.st_uid not in (0, os.geteuid()):
        return f"it belongs to another user (uid {found.st_uid})"
    if found.st_mode & stat.S_IWOTH:
        return "everybody may write to it"
    if found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid):
        return f"a group may write to it (gid {found.st_gid})"
    return ""


def _is_private(group_id: int) -> bool:
    """Tell whether a group has no member but us and the superuser."""
    if group_id == 0:
        return True
    try:
        me = pwd.getpwuid(os.geteuid())
        group = grp.getgrgid(group_id)
    except KeyError:
        return False
    is_ours = me.pw_gid == group_id and group.gr_name == me.pw_name
    return is_ours and not {*group.gr_mem} - {me.pw_name}
