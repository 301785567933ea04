"""How a text was written is recognised, and the user's word counts more."""

from __future__ import annotations

import codecs

import pytest

from vaneb.dialect import Dialect, TextOptions, as_utf8, recognise
from vaneb.errors import InvalidOption, InvalidReport

TEXT = "Ort;Größe\nMünchen;1,5\nKöln;2,25\n"


def found(data: bytes, **options: str) -> tuple[bytes, Dialect]:
    given = TextOptions(**options)
    text, encoding = as_utf8(data, given, "file.csv")
    return recognise(text, encoding, given)


@pytest.mark.parametrize(
    ("encoding", "mark", "name"),
    [
        ("utf-8", b"", "UTF-8"),
        ("utf-8", codecs.BOM_UTF8, "UTF-8"),
        ("latin-1", b"", "Latin-1 (Windows-1252)"),
        ("cp1252", b"", "Latin-1 (Windows-1252)"),
        ("utf-16-le", codecs.BOM_UTF16_LE, "UTF-16"),
        ("utf-16-be", codecs.BOM_UTF16_BE, "UTF-16"),
        ("utf-16-le", b"", "UTF-16"),
        ("utf-16-be", b"", "UTF-16"),
        ("utf-32-le", codecs.BOM_UTF32_LE, "UTF-32"),
    ],
)
def test_encodings(encoding: str, mark: bytes, name: str) -> None:
    text, dialect = found(mark + TEXT.encode(encoding))
    assert text.decode() == TEXT
    assert dialect.words == f"{name}, semicolons between columns, decimal commas"


def test_quotes_and_euro_signs_of_windows() -> None:
    assert found("preis\n„5 €“\n".encode("cp1252"))[0].decode() == "preis\n„5 €“\n"


def test_an_encoding_that_is_named_counts() -> None:
    czech = "obec;hodnota\nPlzeň;1\n"
    assert found(czech.encode("cp1250"))[0].decode() != czech
    assert found(czech.encode("cp1250"), encoding="cp1250")[0].decode() == czech
    with pytest.raises(InvalidReport, match=r"file\.csv: not text in UTF-8.*--encoding"):
        found("é".encode("latin-1"), encoding="utf-8")
    with pytest.raises(InvalidReport, match=r"file\.csv: not text in ascii.*--encoding"):
        found("é".encode(), encoding="ascii")


@pytest.mark.parametrize(
    ("text", "separator", "decimal"),
    [
        ("a,b\n1.5,2\n", ",", "."),
        ("a;b\n1.5;2\n", ";", "."),
        ("a;b\n1,5;2\n", ";", ","),
        ("a;b\n1,234;5,678\n", ";", ","),
        ("a\tb\n1,5\t2\n", "\t", ","),
        ("a|b\n1.5|2\n", "|", "."),
        ('a,b\n"1,5","2,25"\n', ",", ","),
        ('a,b\n"1,500","22,500"\n', ",", "."),  # rather thousands: not taken for decimals
        ('"a, b, c and d";e\nx;1\n', ";", "."),
        ("a;b\n;\n1,5;x\n", ";", ","),
        ("sep=;\na,x;b\n1,5;2\n", ";", ","),
        ("a\n1\n", ",", "."),
        ("a;b\n01.02.2024;1,5\n", ";", ","),
        ("a;b\n1e-3;-,5\n", ";", ","),
    ],
)
def test_separators_and_decimal_signs(text: str, separator: str, decimal: str) -> None:
    dialect = found(text.encode())[1]
    assert (dialect.separator, dialect.decimal) == (separator, decimal)


def test_what_is_named_counts_more_than_what_is_seen() -> None:
    dialect = found(b"a;b\n1,5;2\n", sep="tab", decimal=".")[1]
    assert (dialect.separator, dialect.decimal) == ("\t", ".")


def test_what_excel_adds_is_taken_away() -> None:
    assert found(b"sep=;\r\na;b\r\n1;2\r\n;\r\n ; \r\n\r\n")[0] == b"a;b\r\n1;2\r\n"
    assert found(b"a;b\n1;\n")[0] == b"a;b\n1;\n"  # an empty cell is none of that


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sep": ";;"}, r"--sep ';;': give one character"),
        ({"sep": '"'}, "--sep"),
        ({"decimal": "·"}, r"--decimal '·': give '\.' or ','"),
        ({"encoding": "klingon"}, "--encoding klingon: unknown. Try utf-8"),
        ({"encoding": "base64"}, "--encoding base64: unknown"),
    ],
)
def test_options_that_cannot_be(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        TextOptions(**options)
