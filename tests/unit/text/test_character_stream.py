"""Bytes to characters (spec 05 UTF-1..4, DEC-9; cases E03, C13)."""

from forerun.tokenizer.stream import CharacterStream


def test_characters_split_over_tokens_come_out_whole():
    """UTF-1, UTF-2, DEC-9."""
    stream = CharacterStream()
    chunks = [b"\xe3\x81", b"\x93\xe3", b"\x82\x93"]
    assert [stream.push(chunk)[0] for chunk in chunks] == ["", "こ", "ん"]


def test_a_byte_that_can_never_be_valid_is_passed_on():
    """UTF-1: it must not hold back what follows."""
    stream = CharacterStream()
    assert stream.push(b"a\xffb")[0] == "a\ufffdb"
    assert stream.push(b"\xe3")[0] == ""
    assert stream.push(b"x")[0] == "\ufffdx"
    assert stream.push(b"\xed\xa0\x80")[0] == "\ufffd" * 3


def test_an_incomplete_character_at_the_end_is_dropped():
    """UTF-3, case E03: nothing at the end, also when the text went on before."""
    stream = CharacterStream()
    assert stream.push(b"ok\xf0\x9f")[0] == "ok"
    assert stream.finish() == []
    assert stream.push(b"\x91")[0] == "\ufffd"  # nothing of it is left over


def test_a_real_replacement_mark_is_kept():
    """UTF-1, case E03: one byte a token."""
    text = "naïve 👩‍💻 日本 \ufffd"
    stream = CharacterStream()
    assert "".join(stream.push(bytes([byte]))[0] for byte in text.encode()) == text


def test_entries_wait_for_the_character_that_shows_them():
    """UTF-4, case C13: one emoji, four tokens, four entries with the chunk that shows it."""
    stream = CharacterStream()
    pushed = [stream.push(bytes([byte]), place) for place, byte in enumerate("🦀".encode())]
    assert pushed == [("", []), ("", []), ("", []), ("🦀", [0, 1, 2, 3])]


def test_an_entry_with_a_byte_still_waiting_waits_too():
    """UTF-4."""
    stream = CharacterStream()
    assert stream.push(b"\xe3\x81", "first") == ("", [])
    assert stream.push(b"\x93\xe3", "second") == ("こ", ["first"])
    assert stream.push(b"", "empty") == ("", [])
    assert stream.push(b"\x82\x93", "third") == ("ん", ["second", "empty", "third"])


def test_entries_of_a_dropped_character_are_not_lost():
    """UTF-3, UTF-4: every token keeps its entry."""
    stream = CharacterStream()
    stream.push(b"\xf0", "cut")
    assert stream.finish() == ["cut"]
