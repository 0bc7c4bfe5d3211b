"""Where the values come from: defaults, files, the environment, ``--set``.

Later sources win over earlier ones:

    default               schema.py
    file of the peer      ``--conf FILE``: a Java ``bk_server.conf``; see ``peer_conf``
    file                  ``--config FILE``, or ``quorumbook.toml`` in the working directory,
                          or ``/etc/quorumbook/quorumbook.toml``
    environment           ``QUORUMBOOK_<SECTION>_<NAME>``; ``QUORUMBOOK_METADATA`` is short for
                          ``QUORUMBOOK_METADATA_URI``
    --set KEY=VALUE       ``section.name``, or the peer's key

Options that name code to be run are refused where somebody else could have written them: from a
file that others may change (``trust``), and from Spark's options.  Such a file is not read at all
if nobody has named it and it only lies in the working directory.

A file has one table for a section.  The peer's key is accepted wherever our name is, with its
value in the peer's unit.  A key that no option has is an error that names the nearest one, since
a misspelt option that is silently ignored is found only when it is needed.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, TypeVar

from quorumbook.client.options import NewLedgerOptions
from quorumbook.config.peer_conf import PeerConf
from quorumbook.config.properties import Properties
from quorumbook.config.schema import OPTIONS
from quorumbook.config.trust import distrust_of
from quorumbook.env import logger
from quorumbook.errors import ConfigError
from quorumbook.options import Option, Options, Value

_log = logger("config")

MadeT = TypeVar("MadeT", bound=Options)

DEFAULT_FILE = "quorumbook.toml"
#: Where the packages for hosts and pods put it.
SYSTEM_FILE = "/etc/quorumbook/quorumbook.toml"
FILE_VARIABLE = "QUORUMBOOK_CONFIG"
METADATA_VARIABLE = "QUORUMBOOK_METADATA"
#: Of the command line, which knows clusters by name.
CONTEXT_VARIABLE = "QUORUMBOOK_CONTEXT"

_PREFIX = "QUORUMBOOK_"
_BY_KEY = {option.key: option for option in OPTIONS}
_BY_PEER_KEY = {option.peer_key: option for option in OPTIONS if option.peer_key}
_BY_VARIABLE = {option.variable: option for option in OPTIONS}
_SECTIONS = tuple(dict.fromkeys(option.section for option in OPTIONS))


@dataclass(frozen=True, slots=True)
class Setting:
    """An option's value and where it was given."""

    option: Option
    value: Value
    #: ``default``, ``file PATH``, ``environment VARIABLE`` or ``--set``, or the command's option.
    source: str

    @property
    def is_default(self) -> bool:
        """Whether nobody has set it."""
        return self.source == "default"


class Settings:
    """Every option with its value."""

    def __init__(self, settings: Mapping[str, Setting], warnings: Iterable[str] = ()) -> None:
        self._settings = dict(settings)
        #: What in the peer's file has no effect, for whoever starts something with these values.
        self.warnings = tuple(warnings)

    def __iter__(self) -> Iterator[Setting]:
        return iter(self._settings.values())

    def __getitem__(self, key: str) -> Setting:
        return self._settings[key]

    def section(self, name: str) -> dict[str, Value]:
        """Return the values of a section by their short names."""
        return {
            setting.option.name: setting.value for setting in self if setting.option.section == name
        }

    def text(self, key: str) -> str:
        """Return the value of a text option."""
        value = self._settings[key].value
        assert isinstance(value, str), key
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Return the value of a list."""
        value = self[key].value
        assert isinstance(value, tuple)
        return value

    def integer(self, key: str) -> int:
        """Return the value of an integer or size option."""
        value = self._settings[key].value
        assert isinstance(value, int), key
        return value

    def number(self, key: str) -> float:
        """Return the value of a number or duration option."""
        value = self._settings[key].value
        assert isinstance(value, int | float), key
        return float(value)

    def variables(self, *sources: str) -> dict[str, str]:
        """Return what some sources have set as the environment variables that set the same."""
        return {
            setting.option.variable: setting.option.as_text(setting.value)
            for setting in self
            if setting.source in sources
        }

    def made(self, kind: type[MadeT], **more: object) -> MadeT:
        """Make an object of options of the values of its fields.

        Args:
            kind: Its class.
            more: What else it is made with, which no option says.

        Raises:
            ConfigError: values contradict each other.
        """
        values = {each.name: self[each.key].value for each in kind.declared()}
        try:
            return kind.of({**values, **more})
        except ConfigError as error:
            raise ConfigError(self._from_where(kind, str(error))) from None

    def _from_where(self, kind: type[Options], message: str) -> str:
        """Name the sources of values in a message of ``kind``, which knows them as keywords."""
        for each in kind.declared():
            message = message.replace(f"({each.name}=)", f"({self[each.key].source})")
        return message

    def replaced(self, key: str, raw: object, source: str) -> Settings:
        """Return a copy in which one option has another value, as a command's own option asks."""
        option = _BY_KEY[key]
        setting = Setting(option, option.parse(raw, source=source), source)
        return Settings({**self._settings, key: setting}, self.warnings)


def load(
    *,
    file: str | None = None,
    peer_file: str | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Iterable[str] = (),
    foreign: str = "",
) -> Settings:
    """Gather every option's value from all sources.

    Args:
        file: a TOML file that must exist; without it ``quorumbook.toml`` is read if it is there.
        peer_file: a configuration file of the peer.
        environment: the variables; without it those of the process.
        overrides: texts of the form ``KEY=VALUE``.
        foreign: where ``file`` and ``overrides`` come from if that is somebody who may not have
            code run here, such as ``Spark's options``.

    Raises:
        ConfigError: an unknown key, a bad value, an unreadable file, or options that contradict
            each other.
    """
    variables = os.environ if environment is None else environment
    settings = {option.key: Setting(option, option.default, "default") for option in OPTIONS}
    warnings: list[str] = []
    if peer_file is not None:
        properties = Properties(peer_file, variables)
        distrust = distrust_of(properties.status)
        _read_peer_file(settings, PeerConf(properties), warnings, distrust)
    path = file or variables.get(FILE_VARIABLE)
    if path is not None:
        _read_file(settings, path, foreign if file else "")
    # One that not everybody may read is for those who may.
    elif not _read_default_file(settings) and os.access(SYSTEM_FILE, os.R_OK):
        _read_file(settings, SYSTEM_FILE)
    _read_environment(settings, variables)
    for override in overrides:
        key, equals, raw = override.partition("=")
        if not equals:
            raise ConfigError(f"--set {override}: write KEY=VALUE, such as bookie.port=3182")
        _store(settings, key.strip(), raw, source=foreign or "--set", distrust=foreign)
    result = Settings(settings, warnings)
    check(result)
    return result


def check(settings: Settings) -> None:
    """Refuse options that contradict each other.

    Raises:
        ConfigError: names both options.
    """
    settings.made(NewLedgerOptions)
    if settings["tls.require"].value and not settings["tls.enabled"].value:
        raise ConfigError("tls.require needs tls.enabled")


def _read_default_file(settings: dict[str, Setting]) -> bool:
    """Read the file in the working directory, unless others can change it; tell if it is there."""
    try:
        # Without O_NONBLOCK somebody's named pipe would hold us up.
        with open(DEFAULT_FILE, "rb", opener=_open_without_waiting) as file:
            # What was opened is judged and read: by now another file may have its name.
            distrust = distrust_of(os.fstat(file.fileno()))
            if not distrust:
                _take_file(settings, DEFAULT_FILE, file, distrust)
    except FileNotFoundError:
        return False
    except OSError as error:
        distrust = _distrust_of_unreadable(DEFAULT_FILE)
        if not distrust:
            raise ConfigError(f"{DEFAULT_FILE} cannot be read: {error.strerror}") from None
    if distrust:
        _log.warning(
            "%s is ignored: %s; to use it all the same, give --config %s",
            os.path.abspath(DEFAULT_FILE), distrust, DEFAULT_FILE,
        )  # fmt: skip
    return True


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _distrust_of_unreadable(path: str) -> str:
    """Say why a file that cannot be opened is none of ours; "" if it is ours."""
    try:
        return distrust_of(os.stat(path))
    except OSError:
        return ""


def _read_file(settings: dict[str, Setting], path: str, foreign: str = "") -> None:
    try:
        with open(path, "rb") as file:
            distrust = foreign or distrust_of(os.fstat(file.fileno()))
            _take_file(settings, path, file, distrust)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


def _take_file(settings: dict[str, Setting], path: str, file: BinaryIO, distrust: str) -> None:
    try:
        tables = tomllib.load(file)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not valid TOML: it is not UTF-8 text") from None
    source = f"file {path}"
    for name, content in tables.items():
        if not isinstance(content, dict):
            _store(settings, name, content, source=source, distrust=distrust)
            continue
        if name not in _SECTIONS:
            raise ConfigError(f"{name} ({source}) is not a section{_nearest(name, _SECTIONS)}")
        for key, raw in content.items():
            # The peer's keys are unique, so they need no section of their own.
            full = key if key in _BY_PEER_KEY else f"{name}.{key}"
            _store(settings, full, raw, source=source, distrust=distrust)


def _read_peer_file(
    settings: dict[str, Setting], conf: PeerConf, warnings: list[str], distrust: str
) -> None:
    for key in conf.direct:
        option = _BY_PEER_KEY[key]
        raw = conf.raw(key, option)
        value = option.parse(raw, source=conf.source(key), is_peer_unit=True)
        _demand_trust(option, value, conf.source(key), distrust)
        settings[option.key] = Setting(option, value, conf.source(key))
    for name, (raw, source) in conf.derived().items():
        option = _BY_KEY[name]
        settings[name] = Setting(option, option.parse(raw, source=source), source)
    warnings += conf.warnings()


def _read_environment(settings: dict[str, Setting], variables: Mapping[str, str]) -> None:
    # The long spelling is read after the short one and wins.
    for variable in sorted(variables):
        if not variable.startswith(_PREFIX) or variable in (FILE_VARIABLE, CONTEXT_VARIABLE):
            continue
        name = "QUORUMBOOK_METADATA_URI" if variable == METADATA_VARIABLE else variable
        option = _BY_VARIABLE.get(name)
        if option is None:
            known = (*_BY_VARIABLE, METADATA_VARIABLE, FILE_VARIABLE, CONTEXT_VARIABLE)
            raise ConfigError(
                f"environment variable {variable} is unknown{_nearest(variable, known)}"
            )
        source = f"environment {variable}"
        value = option.parse(variables[variable], source=source)
        settings[option.key] = Setting(option, value, source)


def _store(
    settings: dict[str, Setting], key: str, raw: object, *, source: str, distrust: str = ""
) -> None:
    option = _BY_KEY.get(key)
    is_peer_unit = False
    if option is None:
        option = _BY_PEER_KEY.get(key)
        is_peer_unit = option is not None
    if option is None:
        raise ConfigError(
            f"{key} ({source}) is not an option{_nearest(key, (*_BY_KEY, *_BY_PEER_KEY))}"
        )
    value = option.parse(raw, source=source, is_peer_unit=is_peer_unit)
    _demand_trust(option, value, source, distrust)
    settings[option.key] = Setting(option, value, source)


def _demand_trust(option: Option, value: Value, source: str, distrust: str) -> None:
    if distrust and option.names_code(value):
        raise ConfigError(
            f"{option.key}: {value!r} ({source}) names code to be run, and that is refused from "
            f"here: {distrust}; install it as a plug-in, or name it in a file that only you can "
            f"change, by --config or {FILE_VARIABLE}"
        )


def _nearest(name: str, known: Iterable[str]) -> str:
    """Suggest a name: one that is spelt alike, or has the same last part."""
    names = list(known)
    lowered = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {lowered[close[0]]}?"
    short = {candidate.lower().rpartition(".")[2]: candidate for candidate in names}
    close = difflib.get_close_matches(name.lower().rpartition(".")[2], short, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {short[close[0]]}?"
    return "; `quorumbook config show` lists all options"
