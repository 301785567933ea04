"""How a table of text was written: its encoding, what separates columns, what marks decimals.

Each is recognised from the content unless the user names it.  What is not plain (UTF-8, commas, decimal
points) is said in words, so that a wrong guess is seen.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from dataclasses import dataclass
from typing import Any

from vaneb.errors import InvalidOption, InvalidReport

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars", " ": "spaces"}
#: Other ways to write a separator on a command line.
SPELLED = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "space": " "}
DECIMALS = {".": "decimal points", ",": "decimal commas"}
#: Longest first: the mark of UTF-32 begins with that of UTF-16.
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
NAMES = {
    "utf-8": "UTF-8",
    "utf-16": "UTF-16",
    "utf-16-le": "UTF-16",
    "utf-16-be": "UTF-16",
    "utf-32": "UTF-32",
}
NAMES |= {"cp1252": "Latin-1 (Windows-1252)", "latin-1": "Latin-1"}
#: Control characters that no table begins with.
NOT_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1f]")
#: Rows that are looked at for the decimal sign.
SAMPLE = 2_000
#: A number with decimals, and one that could as well have a separator of thousands.
WITH_COMMA = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?")
WITH_POINT = re.compile(r"[+-]?\d*\.\d+(?:[eE][+-]?\d+)?")
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+")


@dataclass(frozen=True)
class TextOptions:
    """What the user says of a text file; None: recognise it."""

    sep: str | None = None
    decimal: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        if self.sep is not None:
            sep = SPELLED.get(self.sep, self.sep)
            if len(sep) != 1 or sep in '"\r\n' or not sep.isascii():
                raise InvalidOption(f"--sep {self.sep!r}: give one character, such as ';', or tab.")
            object.__setattr__(self, "sep", sep)
        if self.decimal is not None and self.decimal not in DECIMALS:
            raise InvalidOption(f"--decimal {self.decimal!r}: give '.' or ','.")
        if self.encoding is not None and not _is_text_encoding(self.encoding):
            raise InvalidOption(
                f"--encoding {self.encoding}: unknown. Try utf-8, latin-1, cp1250, utf-16 or mac-roman."
            )


@dataclass(frozen=True)
class Dialect:
    """How a text was read."""

    encoding: str
    separator: str
    decimal: str

    @property
    def words(self) -> str:
        """All three in words."""
        encoding = NAMES.get(self.encoding, self.encoding)
        separator = SEPARATORS.get(self.separator, repr(self.separator))
        return f"{encoding}, {separator} between columns, {DECIMALS[self.decimal]}"

    @property
    def is_plain(self) -> bool:
        """What a program would write without being asked."""
        return (self.encoding, self.separator, self.decimal) == ("utf-8", ",", ".")


def as_utf8(data: bytes, options: TextOptions, place: str) -> tuple[bytes, str]:
    """The text in UTF-8 without a byte order mark, and the encoding it had."""
    mark, encoding = next(((m, e) for m, e in BYTE_ORDER_MARKS if data.startswith(m)), (b"", None))
    if options.encoding is not None:
        encoding = codecs.lookup(options.encoding).name
    elif encoding is None:
        encoding = _recognised(data)
    if encoding == "utf-8":
        text = data[len(mark) :] if mark == codecs.BOM_UTF8 else data
        _check_utf8(text, place)
    else:
        try:
            text = data.decode(encoding).removeprefix("\ufeff").encode()
        except (UnicodeError, LookupError) as error:
            raise InvalidReport(
                f"{place}: not text in {NAMES.get(encoding, encoding)} ({_reason(error)}). "
                "Name another encoding (--encoding), or save it as UTF-8."
            ) from None
    if b"\0" in text or NOT_TEXT.search(text, 0, 4096):
        raise InvalidReport(f"{place}: not a table of text. Save it as .csv, .xlsx or .parquet.")
    start = text[:100].lstrip()
    if start.startswith((b"<", b"{", b"[{")):
        raise InvalidReport(f"{place}: HTML or JSON, not a table. Save it as .csv, .xlsx or .parquet.")
    return text, encoding


def recognise(text: bytes, encoding: str, options: TextOptions) -> tuple[bytes, Dialect]:
    """The dialect of ``text`` (UTF-8), and the text without a line ``sep=;`` and empty rows at the end."""
    hint = re.match(rb'"?sep=(.)"?[ \t;,]*\r?\n', text, re.IGNORECASE)
    if hint:
        text = text[hint.end() :]
    first = next((line for line in _lines(text) if line.strip(" ;,\t")), "")
    separator = options.sep
    if separator is None:
        separator = hint[1].decode() if hint else _separator(first)
    text = _without_empty_end(text, separator)
    decimal = options.decimal or _decimal(text, separator)
    return text, Dialect(encoding, separator, decimal)


def rows_of(text: bytes, separator: str) -> Any:
    """Rows of cells: a reader of the standard library, which knows its ``line_num``."""
    return csv.reader(io.TextIOWrapper(io.BytesIO(text), encoding="utf-8", newline=""), delimiter=separator)


def _lines(text: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(text), encoding="utf-8", newline=None)


def _without_empty_end(text: bytes, separator: str) -> bytes:
    empty = f" \t\r\n{separator}".encode()
    while True:
        end = text.rstrip(b"\r\n")
        last = max(end.rfind(b"\n"), end.rfind(b"\r"))
        if last < 0 or end[last:].strip(empty):
            return text
        text = end[: last + 1]


def _separator(header: str) -> str:
    """The separator that splits the header into most columns; quoted names do not count."""
    bare = re.sub(r'"[^"]*"', "", header)
    best = max(",;\t|", key=bare.count)  # of equals the first: a comma
    return best if best in bare else ","


def _decimal(text: bytes, separator: str) -> str:
    """A comma if more numbers are written with one than with a point."""
    commas = points = unclear = 0
    rows = rows_of(text, separator)
    try:
        for number, row in enumerate(rows):
            if number > SAMPLE:
                break
            for cell in row:
                cell = cell.strip()
                if WITH_POINT.fullmatch(cell):
                    points += 1
                elif WITH_COMMA.fullmatch(cell):
                    commas += 1
                    unclear += THOUSANDS.fullmatch(cell) is not None
    except csv.Error:
        pass  # the reader says it, with the place
    # "1,234" between commas is rather a thousand than a decimal; neither is taken on trust.
    if separator == "," and unclear == commas:
        return "."
    return "," if commas > points else "."


def _recognised(data: bytes) -> str:
    """The encoding of text without a byte order mark."""
    head = data[:4096]
    zeros = head[::2].count(0), head[1::2].count(0)
    if max(zeros) > len(head) // 8 and min(zeros) == 0:
        return "utf-16-be" if zeros[0] else "utf-16-le"
    try:
        _check_utf8(data, "")
    except InvalidReport:
        # Windows-1252 is Latin-1 with letters and quotes where that has control characters.
        return "latin-1" if any(byte in data for byte in b"\x81\x8d\x8f\x90\x9d") else "cp1252"
    return "utf-8"


def _check_utf8(data: bytes, place: str) -> None:
    """By parts: the text is not needed, and may be large."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    step = 1 << 22
    try:
        for start in range(0, len(data), step):
            decoder.decode(data[start : start + step])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise InvalidReport(
            f"{place}: not text in UTF-8 ({error.reason}). Name another encoding (--encoding), or none, and "
            "it is recognised."
        ) from None


def _is_text_encoding(name: str) -> bool:
    try:
        codecs.lookup(name)
        "a".encode(name)
    except (LookupError, UnicodeError, TypeError, ValueError):
        return False
    return True


def _reason(error: Exception) -> str:
    return getattr(error, "reason", str(error))
