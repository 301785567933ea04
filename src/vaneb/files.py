"""Files that are either the old ones or the new ones, whatever happens in between."""

from __future__ import annotations

import contextlib
import difflib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from vaneb.errors import InvalidOption

#: In place of a file: standard input or output.
STANDARD = "-"


def make_folder(path: Path) -> None:
    """The folder and those above it, if they are not there yet."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidOption(
            f"{path}: cannot be made a folder ({error.strerror}). Name another folder for the results."
        ) from None


def private_folder(path: Path) -> Path:
    """The folder, for its owner alone (0700)."""
    make_folder(path)
    # A folder of somebody else's, or a file system without permissions, stays as it is.
    with contextlib.suppress(OSError):
        path.chmod(stat.S_IRWXU)
    return path


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """Files and folders that this process makes in the block are for its owner alone (0600, 0700)."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@contextlib.contextmanager
def locked(folder: Path, why: str) -> Iterator[None]:
    """Nobody else works in ``folder`` during the block; refused with ``why`` if somebody does."""
    import fcntl

    make_folder(folder)
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidOption(f"{folder}: {why}. Wait for it, or name another folder.") from None
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary file beside ``path``; put it in its place if the block succeeds, else remove it.

    The new content is on disk before the name points to it, and the renaming is one step of the file
    system: a reader, an interrupt or a power cut sees the old file or the new one, never a part.

    Examples
    --------
    >>> with replacing("out.csv") as temporary:             # doctest: +SKIP
    ...     temporary.write_text("client,theta_a")
    """
    target = check_writable(path)
    # Named before it is made: an interrupt at any moment after that finds what to remove.
    temporary = target.parent / f".{target.name}.{secrets.token_hex(6)}.partial"
    try:
        try:
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except OSError as error:
            raise InvalidOption(f"{path}: cannot write in {target.parent} ({error.strerror}).") from None
        yield temporary
        temporary.chmod(_mode_for(target))
        _flush_to_disk(temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    _flush_to_disk(target.parent)


def check_writable(path: str | os.PathLike[str]) -> Path:
    """The real path behind ``path``, if a file can be put there; to be asked before long work."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise InvalidOption(f"{path}: is not a file. Name a file to write to.")
    if not target.parent.is_dir():
        raise InvalidOption(f"{path}: the folder {target.parent} does not exist. Create it first.")
    if not os.access(target.parent, os.W_OK):
        raise InvalidOption(f"{path}: no permission to write in {target.parent}. Name another folder.")
    return target


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Make ``data`` the content of ``path``, in one step."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def _mode_for(target: Path) -> int:
    """The permissions of the file that is replaced, or those of a new file of this user."""
    if target.exists():
        return stat.S_IMODE(target.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _flush_to_disk(path: Path) -> None:
    # Some file systems refuse to open or flush a folder; the renaming stands all the same.
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def absent(path: str | os.PathLike[str]) -> str:
    """What to say of a file that is not there: where that is so, and which name may have been meant."""
    target = Path(path)
    folder = target.parent
    if not folder.is_dir():
        return f"{path}: there is no such file, and no folder {folder}. Check the path."
    others = [entry.name for entry in folder.iterdir() if entry.is_file() and entry.suffix == target.suffix]
    close = difflib.get_close_matches(target.name, others, n=1)
    if close:
        return f"{path}: there is no such file. Did you mean {folder / close[0]}?"
    return f"{path}: there is no such file. Check the name; relative paths start in {Path.cwd()}."
