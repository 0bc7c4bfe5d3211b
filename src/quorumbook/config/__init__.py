"""Every option once, and the values they have.

``schema.py`` lists the options, ``options.py`` turns text into values, ``load.py`` gathers them
from file, environment and command line.  This room offers plain values by name; the command line
makes a bookie's and a client's options of them, since configuration knows neither.
"""

from quorumbook.config.load import DEFAULT_FILE, Setting, Settings, check, load
from quorumbook.config.schema import OPTIONS
from quorumbook.options import Kind, Option, Value

__all__ = [
    "DEFAULT_FILE",
    "OPTIONS",
    "Kind",
    "Option",
    "Setting",
    "Settings",
    "Value",
    "check",
    "load",
]
