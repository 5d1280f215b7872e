# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Made-up safetensors files: most nearly whole, each with few things odd, so that both readers get past the first check.

Headers are written as text, not with ``json``: what Python would never write (duplicates, ``-0``, half surrogates) is the point.
All chance comes from the ``random.Random`` that is passed in, so a seed names its files, and hypothesis can drive it too.
"""

from __future__ import annotations

import re
import typing as t
from random import Random

__all__ = ["DTYPES", "any_file", "packed"]

DTYPES = {
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
    **dict.fromkeys(["BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"], 8),
    **dict.fromkeys(["I16", "U16", "F16", "BF16"], 16),
    **dict.fromkeys(["I32", "U32", "F32"], 32),
    **dict.fromkeys(["I64", "U64", "F64", "C64"], 64),
}
STRANGE_DTYPES = [
    "F7",
    "f32",
    "F8",
    "F8_E4M3FN",
    "F8_E5M3",
    "C128",
    "F128",
    "I128",
    "U4",
    "I4",
    "F2",
    "bool",
    "STR",
    "BF8",
    "",
    "U8 ",
    "E8M0",
]
NUMBERS = [
    *(
        "0",
        "-0",
        "1",
        "-1",
        "1.0",
        "0.0",
        "-0.0",
        "1e0",
        "0e0",
        "1E2",
        "1e-2",
        "00",
        "01",
        "+1",
        ".5",
        "1.",
        "1e",
        "1e+",
        "-",
        "0x1",
        "1_0",
    ),
    *("255", "4294967296", "9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616"),
    *("-9223372036854775808", "-9223372036854775809", "2305843009213693951", "2305843009213693952", "4611686018427387904"),
    *("1e308", "1e309", "-1e309", "1.7976931348623157e308", "1.7976931348623159e308", "17976931348623158e292", "1e-400", "0e999999999999"),
    *("1e999999999999", "1e-999999999999", "NaN", "Infinity", "-Infinity", "nan", "inf", "true", "false", "null", '"1"', "[1]", "{}", "[]"),
    *("9" * 20, "9" * 308, "9" * 309, "9" * 310, "1" + "0" * 308, "1" + "0" * 309, "9" * 5000, "1844674407370955161" + "9" * 290 + ".0e0"),
]
ESCAPES = [
    *(
        r"\u0061",
        r"\u0000",
        r"\ud800",
        r"\udc00",
        r"\ud83d\ude00",
        r"\uD83D\uDE00",
        r"\ud800\ud800",
        r"\udc00\ud800",
        r"\ud800x",
        r"\ud83d\u0041",
    ),
    *(
        r"\n",
        r"\/",
        r"\\",
        r"\"",
        r"\b",
        r"\x41",
        r"\u12",
        r"\u12g4",
        r"\U0041",
        "\\",
        r"\u 041",
        r"\u+041",
        r"\uFFFF",
        r"\ufeff",
        r"\ud83d\\ude00",
    ),
    *("\x00", "\x1f", "\n", "\t", "\x7f", "\x80", "\u2028", "\ufeff", "\U0001f600", "é", "-0", "__metadata__"),
]
UNREADABLE = [
    b"\xff",
    b"\x80",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xed\xb0\x80",
    b"\xf4\x90\x80\x80",
    b"\xf8\x88\x80\x80\x80",
    b"\xe2\x82",
    b"\xef\xbb\xbf",
]
GAPS = ["", " ", "  ", "\n", "\t", "\r", "\r\n", "\x0b", "\x0c", "\xa0", "\u2003", "\ufeff", "\x00", "/**/", ","]
LENGTHS = [0, 1, 2, 7, 8, 9, 99_999_999, 100_000_000, 100_000_001, 2**31, 2**32, 2**53, 2**63, 2**64 - 9, 2**64 - 8, 2**64 - 1]


class Entry(t.NamedTuple):
    """One tensor before it becomes text: everything in it may already be nonsense."""

    name: str
    dtype: str
    shape: list[str]
    offsets: list[str]


def packed(header: t.Union[bytes, str], data: bytes = b"") -> bytes:
    """The file of a header and its data."""
    raw = header.encode("utf-8", "surrogatepass") if isinstance(header, str) else header
    return len(raw).to_bytes(8, "little") + raw + data


def any_file(random: Random) -> bytes:
    """A file of any kind; about a third of them are whole."""
    oddity = random.choice([0.0, 0.0, 0.01, 0.03, 0.1])
    entries, size = _entries(random, oddity)
    header = _header(random, entries, oddity)
    if _odd(random, 0.2):
        header = re.sub(r"([:,])(?=[\[{\"0-9])", r"\1 ", header)  # as Python's json writes it
    content = _packed_oddly(random, header, size, oddity)
    for _repetition in range(random.choice([0, 0, 0, 1, 2])):
        content = random.choice(_DAMAGES)(random, content)
    return content


def _odd(random: Random, oddity: float) -> bool:
    return random.random() < oddity


def _entries(random: Random, oddity: float) -> tuple[list[Entry], int]:
    """Tensors that follow one another without a gap, and their bytes in all, but for some oddities."""
    entries, position = [], 0
    for _tensor in range(random.choice([0, 1, 1, 2, 3, 5])):
        dtype, bits = random.choice(list(DTYPES.items()))
        shape = [random.choice([0, 1, 1, 2, 2, 3, 4, 5, 8]) for _dimension in range(random.choice([0, 1, 1, 2, 2, 3, 4]))]
        end = position + _product(shape) * bits // 8
        places = [position, end] if not _odd(random, oddity) else _misplaced(random, position, end)
        dimensions = [str(size) for size in shape] if not _odd(random, oddity) else _misshaped(random, shape)
        entries.append(Entry(_name(random, oddity), dtype, dimensions, [str(place) for place in places]))
        position = end
    if _odd(random, 0.5):
        random.shuffle(entries)
    return entries, position


def _product(shape: t.Iterable[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _misplaced(random: Random, start: int, end: int) -> list[int]:
    """A gap, an overlap, a slice that ends before it starts, or two, three or no ends."""
    step = random.choice([-1, 1, 8, 2**63, 2**64 - 1])
    return random.choice(
        [[start + step, end], [start, end + step], [start + step, end + step], [end, start], [start], [start, end, end], []]
    )


def _misshaped(random: Random, shape: list[int]) -> list[str]:
    """As many elements in another shape; too many for any computer, in front of a zero or behind it; or no numbers at all."""
    huge = [str(random.choice([2**32, 2**61, 2**63, 2**64 - 1, 2**64])) for _dimension in range(random.choice([1, 2, 3]))]
    ones = ["1"] * random.choice([1, 30, 200])
    plain = [str(size) for size in shape]
    return random.choice([[*huge, "0"], ["0", *huge], [*plain, *huge], [*plain, *ones], [*plain, _number(random)], plain[1:]])


def _number(random: Random) -> str:
    if _odd(random, 0.5):
        return random.choice(NUMBERS)
    digits = "".join(random.choice("0123456789") for _digit in range(random.choice([1, 2, 17, 18, 19, 20, 21, 40])))
    point = "." + "".join(random.choice("0049") for _digit in range(random.choice([1, 2, 20]))) if _odd(random, 0.5) else ""
    power = (
        random.choice(["e", "E"])
        + random.choice(["", "+", "-"])
        + str(random.choice([0, 1, 19, 287, 288, 289, 290, 307, 308, 309, 330, 2**31]))
    )
    return random.choice(["", "", "-"]) + (digits.lstrip("0") or "0") + point + (power if _odd(random, 0.6) else "")


def _name(random: Random, oddity: float) -> str:
    """The inside of a quoted name, ready escaped."""
    if _odd(random, oddity * 2):
        return random.choice(["", "a", "1", "-0", "\\u005f_metadata__"]) + random.choice(ESCAPES)
    if _odd(random, oddity / 4):
        return "__metadata__"
    return random.choice(["a", "b", "c", "model.layers.0.mlp.weight", "x" * 40, "h-0"]) + str(random.randrange(30))


def _value(random: Random, depth: int = 0) -> str:
    """Any JSON at all, and some that is none."""
    kind = random.randrange(9 if depth < 3 else 5)
    if kind < 2:
        return _number(random)
    if kind < 4:
        return '"' + random.choice([*ESCAPES, "a", "U8"]) + '"'
    if kind == 4:
        return _nested(random)
    if kind < 7:
        return "[" + ",".join(_value(random, depth + 1) for _item in range(random.randrange(3))) + "]"
    return "{" + ",".join(f'"{_name(random, 0.1)}":{_value(random, depth + 1)}' for _item in range(random.randrange(3))) + "}"


def _unread(random: Random) -> str:
    """A value for a field that nobody reads: what must be valid all the same."""
    if _odd(random, 0.4):
        return _value(random)
    return random.choice(
        [_number(random), _nested(random), '"' + random.choice(ESCAPES) + '"', random.choice(["NaN", "Infinity", "-0", "true"])]
    )


def _nested(random: Random) -> str:
    """Brackets around the depth at which the format's own reader gives up, and far beyond."""
    depth = random.choice([1, 50, 120, 123, 124, 125, 126, 127, 128, 129, 200, 1000, 3000])
    start, end = random.choice([("[", "]"), ('{"a":', "}")])
    return start * depth + random.choice(["0", "{}", "[]", '""']) + end * (depth if not _odd(random, 0.05) else depth - 1)


def _header(random: Random, entries: t.Sequence[Entry], oddity: float) -> str:
    members = [f'"{_twisted(random, entry.name, oddity)}"{_colon(random, oddity)}{_entry(random, entry, oddity)}' for entry in entries]
    if _odd(random, 0.3):
        members.insert(random.randrange(len(members) + 1), _metadata(random, oddity))
    if members and _odd(random, oddity):
        members.insert(random.randrange(len(members) + 1), random.choice(members))
    if _odd(random, oddity):
        members.append(random.choice([_metadata(random, oddity), f'"z":{_value(random)}', _value(random), "", '"z"', '"z":']))
    text = "{" + _comma(random, oddity).join(members) + "}"
    if _odd(random, oddity):
        text = random.choice([f"[{text}]", f"[null,{text}]", "[" + ",".join(members) + "]", f'"{text}"', _value(random)])
    return _gap(random, oddity) + text + _gap(random, max(oddity, 0.1))


def _metadata(random: Random, oddity: float) -> str:
    key = '"__metadata__":'
    if _odd(random, oddity * 3):
        return key + random.choice(
            ["null", "{}", "[]", "1", '"a"', '[["a","b"]]', '{"a":"b","a":"c"}', '{"a":1}', '{"a":null}', _value(random)]
        )
    pairs = (f'"{_name(random, oddity)}":"{_name(random, oddity)}"' for _pair in range(random.randrange(3)))
    return key + "{" + ",".join(pairs) + "}"


def _entry(random: Random, entry: Entry, oddity: float) -> str:
    dtype = random.choice([*DTYPES, *STRANGE_DTYPES]) if _odd(random, oddity) else entry.dtype
    written = f'"{_twisted(random, dtype, oddity)}"'
    if _odd(random, oddity):
        written = "{" + written + ":" + random.choice(["null", "{}", "[]", "0", "null,", 'null,"U8":null', f"null,{written}:null"]) + "}"
    values = [written, _array(random, entry.shape, oddity), _array(random, entry.offsets, oddity)]
    if _odd(random, oddity):
        values[random.randrange(3)] = _value(random)
    fields = [
        f'"{_twisted(random, name, oddity)}"{_colon(random, oddity)}{value}'
        for name, value in zip(["dtype", "shape", "data_offsets"], values)
    ]
    if _odd(random, oddity):
        return "[" + ",".join([*values, _value(random)] if _odd(random, 0.1) else values) + "]"
    return "{" + _comma(random, oddity).join(_rearranged(random, fields, oddity)) + "}"


def _rearranged(random: Random, fields: list[str], oddity: float) -> list[str]:
    """Another order, a field twice, one missing, one that nobody knows."""
    if _odd(random, 0.2):
        random.shuffle(fields)
    if _odd(random, oddity):
        fields.append(random.choice(fields))
    if _odd(random, oddity):
        fields.pop(random.randrange(len(fields)))
    for _repetition in range(random.choice([1, 1, 2]) if _odd(random, oddity * 2) else 0):
        fields.insert(
            random.randrange(len(fields) + 1), f'"{random.choice(["x", "Shape", "start", _name(random, 0.1)])}":{_unread(random)}'
        )
    return fields


def _array(random: Random, items: t.Sequence[str], oddity: float) -> str:
    if not items and _odd(random, oddity):
        return random.choice(["{}", "null", "false", '""', "0"])
    return "[" + _comma(random, oddity).join(_respelled(random, item, oddity) for item in items) + "]"


def _respelled(random: Random, number: str, oddity: float) -> str:
    """The same number as JSON or Python may also spell it, or another one."""
    if not _odd(random, oddity / 2):
        return number
    same = [
        f"-{number}",
        f"0{number}",
        f"{number}.0",
        f"{number}e0",
        f'"{number}"',
        f" {number}",
        {"0": "false", "1": "true"}.get(number, "null"),
    ]
    return random.choice([*same, _number(random)])


def _twisted(random: Random, text: str, oddity: float) -> str:
    """The same text written with an escape, or another text."""
    if not text or not _odd(random, oddity / 2):
        return text
    place = random.randrange(len(text))
    if _odd(random, 0.5):
        return f"{text[:place]}\\u{ord(text[place]):04x}{text[place + 1 :]}"
    return text[:place] + random.choice(ESCAPES) + text[place:]


def _gap(random: Random, oddity: float) -> str:
    if not _odd(random, oddity):
        return ""
    return random.choice(GAPS[:7]) * random.randrange(9) if _odd(random, 0.7) else random.choice(GAPS)


def _comma(random: Random, oddity: float) -> str:
    return (
        _gap(random, oddity / 2) + "," + _gap(random, oddity / 2) if not _odd(random, oddity / 3) else random.choice(["", ",,", ";", " "])
    )


def _colon(random: Random, oddity: float) -> str:
    return (
        _gap(random, oddity / 2) + ":" + _gap(random, oddity / 2) if not _odd(random, oddity / 8) else random.choice(["", "::", "=", " "])
    )


def _packed_oddly(random: Random, header: str, size: int, oddity: float) -> bytes:
    """The file, with an odd number of bytes behind its header or an odd length before it."""
    if _odd(random, oddity):
        size = max(0, size + random.choice([-1, 1, 8, -size]))
    content = packed(header, bytes(size))
    if _odd(random, oddity):
        length = random.choice([*LENGTHS, len(content) - 9, len(content) - 8, len(content) - 7])
        content = (max(0, length) % 2**64).to_bytes(8, "little") + content[8:]
    return content


def _flip(random: Random, content: bytes) -> bytes:
    if not content:
        return content
    place = random.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << random.randrange(8)]) + content[place + 1 :]


def _replace(random: Random, content: bytes) -> bytes:
    """Another character of JSON in the place of one, of the same length, so that the rest still fits."""
    if len(content) < 9:
        return content
    place = random.randrange(8, len(content))
    return content[:place] + bytes([random.choice(b'{}[]",:0123456789-+.eE \\/utfnx\x00\xff')]) + content[place + 1 :]


def _truncate(random: Random, content: bytes) -> bytes:
    return content[: random.choice([random.randrange(len(content) + 1), len(content) - 1, 7, 8, 9])]


def _extend(random: Random, content: bytes) -> bytes:
    return content + random.choice([b"\x00", b" ", b"}", b"\x00" * 8, content])


def _insert(random: Random, content: bytes) -> bytes:
    """Bytes that are no UTF-8, or a number, in the header, whose length follows."""
    header, data = _split(content)
    place = random.randrange(len(header) + 1)
    return packed(header[:place] + random.choice([*UNREADABLE, _number(random).encode()]) + header[place:], data)


def _cut(random: Random, content: bytes) -> bytes:
    header, data = _split(content)
    start = random.randrange(len(header) + 1)
    return packed(header[:start] + header[start + random.choice([1, 1, 2, 8]) :], data)


def _split(content: bytes) -> tuple[bytes, bytes]:
    length = int.from_bytes(content[:8], "little")
    return content[8 : 8 + length], content[8 + length :]


_DAMAGES: list[t.Callable[[Random, bytes], bytes]] = [_flip, _flip, _replace, _replace, _truncate, _extend, _insert, _cut]
