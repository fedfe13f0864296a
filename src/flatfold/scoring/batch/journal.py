"""Parts that are done, in a file that only grows: whatever stops a run, it goes on behind the last whole line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self
from zlib import crc32

from ...files import opened_alone

FORMAT, VERSION = "flatfold-journal", 1
OPENING = 64  # bytes, in which a journal says what it is
AGAIN = "Choose another --out, or give --restart to begin again."


class Journal:
    """Lines ``<crc32> <json>``: the first says which job this is, each other one holds a part.

    A line that was cut off, or whose bytes have changed, ends the journal: what lies behind it is computed again. A
    part that comes twice counts once. While it is open, no other process can open it (:func:`opened_alone`).

    Args:
        path: The file; made if it is not there.
        job: What tells this job from others, as values that JSON knows. A journal of another job is refused, unless no
            part of it was done.
        restart: Forget what is in it, of whatever job.

    Raises:
        ValueError: The file is that of another job, or no journal: then it is left as it is.
        BlockingIOError: Another process is writing it.
    """

    def __init__(self, path: Path, job: Mapping[str, object], restart: bool = False) -> None:
        self.path = path
        self._places: dict[int, tuple[int, int]] = {}  # of each part: where its line begins, and its length
        self._file = opened_alone(path)
        try:
            self._recover({"format": FORMAT, "version": VERSION, "job": dict(job)}, restart)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            self._file.close()
        except OSError:  # what could not be written is tried once more, and has been told
            if kind is None:
                raise

    def __contains__(self, part: int) -> bool:
        return part in self._places

    def __len__(self) -> int:
        return len(self._places)

    def add(self, part: int, text: str) -> None:
        """Append what was found out about a part, as one line of JSON; a part that is there stays as it is."""
        if part in self._places:
            return
        line = _line(f"[{part}, {text}]")
        start = self._file.seek(0, os.SEEK_END)
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            error.filename = str(self.path)  # a write that fails does not know its file
            raise
        self._places[part] = start, len(line)

    def read(self, part: int) -> str:
        """Return what was added for a part."""
        start, length = self._places[part]
        self._file.seek(start)
        text = _checked(self._file.read(length))
        if text is None:
            raise ValueError(f"{self.path} was changed while it was in use. Run the same command again.")
        return text[text.index(",") + 2 : -1]

    def discard(self) -> None:
        """Remove the file: all of it is somewhere else now."""
        self.path.unlink(missing_ok=True)

    def _recover(self, head: dict[str, Any], restart: bool) -> None:
        """Take in all whole lines, and cut off what is behind them."""
        self._check_ours(_line(json.dumps(head)))
        lines = iter(()) if restart else self._whole_lines()
        first, there = next(lines, (b"", ""))
        end = len(first)
        for line, text in lines:
            if not self._places:  # a journal without a part may become that of any job
                self._check_head(json.loads(there), head)
            self._places.setdefault(int(text[1 : text.index(",")]), (end, len(line)))
            end += len(line)
        self._file.truncate(end if self._places else 0)
        if not self._places:
            self._file.seek(0)
            self._file.write(_line(json.dumps(head)))
            self._file.flush()

    def _whole_lines(self) -> Iterator[tuple[bytes, str]]:
        self._file.seek(0)
        for line in self._file:
            text = _checked(line)
            if text is None:
                return
            yield line, text

    def _check_ours(self, first: bytes) -> None:
        """Raise unless the file says that it is a journal, or is empty, or was cut off in its ``first`` line."""
        self._file.seek(0)
        opening = self._file.read(OPENING)
        if FORMAT.encode() not in opening and not first.startswith(opening):
            raise ValueError(
                f"{self.path} is no journal of flatfold, and is not overwritten. Choose another --out, or remove it."
            )

    def _check_head(self, there: dict[str, Any], head: dict[str, Any]) -> None:
        if there == head:
            return
        was, now = there.get("job", {}), head["job"]
        other = [name for name in now if was.get(name) != now[name]] or ["version of flatfold"]
        raise ValueError(
            f"{self.path} belongs to a run that was stopped and had another {' and '.join(other)}. {AGAIN}"
        )


def _line(text: str) -> bytes:
    return f"{crc32(text.encode()):08x} {text}\n".encode()


def _checked(line: bytes) -> str | None:
    """Return the text of a line, or None if it is not whole."""
    if len(line) < 10 or line[-1:] != b"\n" or line[:9] != b"%08x " % crc32(line[9:-1]):
        return None
    return line[9:-1].decode()
