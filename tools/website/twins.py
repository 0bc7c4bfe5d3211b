"""The site shows what the blocking twin declares as what it is: methods and properties.

A declared method has the parameters of asyncio's, and a declared property its type.
"""

from __future__ import annotations

from typing import Any

import griffe

_DECLARATIONS = {"blocking", "iterating", "deriving", "_appending", "_appending_nowait"}


class DeclaredTwins(griffe.Extension):
    """Makes functions and properties of what ``quorumbook.sync.declared`` declares."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Look through the twin when all of the package is known."""
        if pkg.name == "quorumbook" and "sync" in pkg.members:
            for module in _modules(pkg["sync"]):
                for kind in module.classes.values():
                    if not kind.is_alias:
                        _describe(pkg, kind)


def _modules(module: griffe.Module) -> list[griffe.Module]:
    below = [each for each in module.modules.values() if not each.is_alias]
    return [module, *(found for each in below for found in _modules(each))]


def _describe(pkg: griffe.Module, kind: griffe.Class) -> None:
    for name, member in list(kind.members.items()):
        if member.is_alias or not member.is_attribute:
            continue
        call = member.value
        if not isinstance(call, griffe.ExprCall):
            continue
        if str(call.function) == "held":
            _show_property(pkg, member, call)
        if str(call.function) not in _DECLARATIONS:
            continue
        path = call.arguments[0].canonical_path.replace("[R]", "").removeprefix("quorumbook.")
        try:
            method = pkg[path]
        except KeyError:  # what is inherited is not known yet; the attribute's text says enough
            continue
        function = griffe.Function(
            name,
            lineno=member.lineno,
            endlineno=member.endlineno,
            parameters=method.parameters,
            returns=call.arguments[1] if len(call.arguments) > 1 else method.returns,
            docstring=method.docstring,
            parent=kind,
        )
        kind.set_member(name, function)


def _show_property(pkg: griffe.Module, member: griffe.Attribute, call: griffe.ExprCall) -> None:
    """Show asyncio's type, and not how it is looked up."""
    path = call.arguments[0].canonical_path.removeprefix("quorumbook.")
    shown = str(call.arguments[1]).rpartition(".")[2]
    member.value, member.labels = None, {"property"}
    try:
        member.annotation = pkg[path].all_members[shown].annotation
    except (KeyError, AttributeError):  # what is inherited is not known yet
        return
