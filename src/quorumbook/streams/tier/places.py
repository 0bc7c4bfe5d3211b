"""Where files are: a directory of this machine by its path, or any place by its URI.

    /data/tier
    s3://BUCKET/DIR?region=eu-west-1
    s3://BUCKET/DIR?endpoint_override=http://HOST:PORT

What stands behind ``?`` are options of pyarrow's file system; they stay behind whatever is added
to the path.  ``s3a://``, as Hadoop has it, is ``s3://``.  A URI has no credentials in it, since it
is kept in the metadata and in the files of jobs, and shown in messages.

An object store has no directories, and an object is not there before it is whole; moving one
copies it, over whatever has the name.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from quorumbook.errors import ConfigError

#: pyarrow's names of file systems without directories.
_OBJECT_STORES = ("s3", "gcs", "abfs")
#: The first part of such a URI is a bucket alone: nobody's name, and no port.
_BUCKETS = ("s3", "s3a", "gs", "gcs")
_SECRET_OPTION = re.compile(r"(secret|password|token|key)[^=&]*=", re.IGNORECASE)
_LONG_NAME = 150


def below(location: str, *names: str) -> str:
    """Return the place of something in a directory.

    Args:
        location: The directory, as path or URI.
        names: Below it; they have no characters that a URI has to escape.
    """
    path, options = _split(location)
    return "/".join((path.rstrip("/"), *names)) + options


def above(location: str) -> str:
    """Return the directory that a directory is in."""
    path, options = _split(location)
    return path.rpartition("/")[0] + options


def bare(location: str) -> str:
    """Return a place without options."""
    return _split(location)[0]


def options_of(location: str) -> str:
    """Return the options of a URI, with the ``?`` before them; empty: it has none."""
    return _split(location)[1]


def relative(location: str, directory: str) -> str:
    """Return the path of a place from a directory that it is below."""
    return bare(location).removeprefix(f"{bare(directory).rstrip('/')}/")


def safe_name(name: str) -> str:
    """Return a file name for any name of a stream, without characters that a URI escapes."""
    safe = re.sub(
        r"[^A-Za-z0-9._-]", lambda found: "".join(f"~{b:02X}" for b in found[0].encode()), name
    )
    if len(safe) > _LONG_NAME:
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        safe = re.sub(r"~[0-9A-F]?$", "", safe[:100]) + f"~~{digest}"
    return safe


def check_uri(location: str) -> None:
    """Raise ConfigError if a URI has credentials in it, without saying them."""
    scheme, mark, rest = location.partition("://")
    if not mark:
        return
    path, _, options = rest.partition("?")
    authority = path.partition("/")[0]
    user, at, _ = authority.rpartition("@")
    is_bucket = scheme in _BUCKETS and (at or ":" in authority)
    if is_bucket or ":" in user or _SECRET_OPTION.search(options):
        raise ConfigError(
            f"the {scheme}:// URI has credentials in it, and would be kept and shown: take them "
            "out, and give them by the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), "
            "a profile or a role, on every machine that reads or writes the files"
        )


def file_system(location: str) -> tuple[Any, str]:
    """Return the file system of a path or URI, and the path in it.

    Raises:
        ConfigError: pyarrow is not installed, or the location is of no kind that it knows.
    """
    try:
        from pyarrow import fs
    except ImportError as error:
        raise ConfigError(
            "Parquet files are read and written by pyarrow: pip install 'quorumbook[spark]'"
        ) from error
    try:
        if "://" in location:
            system, path = fs.FileSystem.from_uri(re.sub("^s3a://", "s3://", location))
            return system, path
        return fs.LocalFileSystem(), location
    except (ValueError, OSError) as error:
        raise ConfigError(f"{location} is not a place for files: {error}") from error


def is_object_store(system: Any) -> bool:
    """Tell whether a file system has no directories."""
    return system.type_name in _OBJECT_STORES


def make_directory(system: Any, path: str) -> None:
    """Make a directory unless it is there; an object store needs none."""
    if not is_object_store(system):
        system.create_dir(path, recursive=True)


def check_place(location: str) -> None:
    """See that files can be put somewhere, as far as that can be seen without doing so; blocks.

    Raises:
        ConfigError: the URI is wrong or has credentials, the bucket is not there, or whoever asks
            may not see it.
    """
    check_uri(location)
    if "#" in location and "://" in location:
        raise ConfigError(f"{location}: no # in a URI")
    system, path = file_system(location)
    if not is_object_store(system):
        return
    bucket = path.partition("/")[0]
    if not bucket:
        raise ConfigError(f"{location} names no bucket")
    try:
        is_there = _look(system, bucket, path)
    except OSError as error:
        raise ConfigError(f"{location} cannot be looked at: {error}") from error
    if not is_there:
        raise ConfigError(f"{location}: there is no bucket {bucket}; make it first")


def check_there(directory: str, *, was_made: bool) -> None:
    """See that a directory is there, or the bucket that it would be in; blocks.

    Args:
        directory: Path or URI.
        was_made: Whether it was there once.

    Raises:
        OSError: it is not, or whoever asks may not see it.
    """
    system, path = file_system(directory)
    if is_object_store(system):
        bucket = path.partition("/")[0]
        if not _look(system, bucket, path):
            raise FileNotFoundError(f"there is no bucket {bucket}")
    elif was_made and not _is_directory(system, path):
        raise FileNotFoundError(f"{directory} is not there; is its file system mounted?")


def _is_directory(system: Any, path: str) -> bool:
    from pyarrow import fs

    return bool(system.get_file_info(path).type == fs.FileType.Directory)


def _look(system: Any, bucket: str, path: str) -> bool:
    from pyarrow import fs

    try:
        return bool(system.get_file_info(bucket).type != fs.FileType.NotFound)
    except OSError:
        # Who may see a part of the bucket only is not told of the bucket.
        system.get_file_info(fs.FileSelector(path, allow_not_found=True))
        return True


def _split(location: str) -> tuple[str, str]:
    if "://" not in location:
        return location, ""
    path, mark, options = location.partition("?")
    return path, mark + options
