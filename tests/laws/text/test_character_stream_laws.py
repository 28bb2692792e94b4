"""Laws of text assembly over any bytes and any chunking (spec 05 UTF-1, UTF-3, UTF-4)."""

from hypothesis import given
from hypothesis import strategies as st

from forerun.tokenizer.stream import CharacterStream

VALID = st.sampled_from(["a", "é", "日", "👩‍💻", "\ufffd"]).map(str.encode)
CHUNKS = st.lists(st.one_of(st.binary(max_size=3), VALID.map(lambda b: b[:2]), VALID), max_size=9)


def without_cut_end(data):
    """`data` without a last character that more bytes could complete."""
    for cut in range(min(3, len(data)), 0, -1):
        tail = data[-cut:]
        for rest in (b"\x80", b"\xbf", b"\x80\x80", b"\xbf\x80", b"\x80\x80\x80", b"\x90\x80\x80"):
            try:
                whole = (tail + rest).decode()
            except UnicodeDecodeError:
                continue
            if len(whole) == 1:
                return data[:-cut]
    return data


@given(CHUNKS)
def test_joined_text_is_the_whole_decoded_without_a_cut_end(chunks):
    """UTF-1, UTF-3."""
    stream = CharacterStream()
    text = "".join(stream.push(chunk)[0] for chunk in chunks)
    assert text == without_cut_end(b"".join(chunks)).decode(errors="replace")


@given(CHUNKS)
def test_each_entry_comes_once_in_order_and_no_later_than_its_bytes(chunks):
    """UTF-4."""
    stream = CharacterStream()
    seen, held = [], b""
    for place, chunk in enumerate(chunks):
        _, entries = stream.push(chunk, place)
        seen += entries
        held = b"".join(chunks[: place + 1])
        done = len(without_cut_end(held))
        ends = [len(b"".join(chunks[: n + 1])) for n in range(place + 1)]
        assert seen == [n for n, end in enumerate(ends) if end <= done]
    assert seen + stream.finish() == list(range(len(chunks)))
