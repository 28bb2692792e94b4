"""Nothing resumes and nothing is captured inside a media item whose tokens see each other."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fixtures.layer_kinds import Rig
from forerun.prefix.captures import CaptureRule
from forerun.prefix.keys import MediaRange, fold

SEEN = fold(b"an image", (3,))
TAIL = st.lists(st.integers(0, 1), min_size=1, max_size=5)


@settings(max_examples=100)
@given(
    layout=st.sampled_from(["sliding", "recurrent", "kv"]),
    look_ahead=st.sampled_from([0, 1]),
    before=st.integers(0, 1),
    length=st.integers(2, 4),
    requests=st.lists(st.tuples(TAIL, st.just([]) | TAIL), min_size=3, max_size=5),
    interval=st.sampled_from([4, 1000]),
    chunk=st.integers(1, 9),
)
@example(
    layout="sliding",
    look_ahead=1,
    before=1,
    length=4,
    requests=[([1, 1, 1, 1, 1], []), ([3, 4], []), ([1, 5], [])],
    interval=1000,
    chunk=9,
)
def test_an_item_is_evaluated_whole_or_not_at_all(
    layout, look_ahead, before, length, requests, interval, chunk
):
    """BEG-3, 02 SCH-3, MED-1: wherever the requests part, and whatever the layers can restore."""
    rig = Rig(layout, look_ahead, captures=CaptureRule(interval, 1))
    item = MediaRange(before, before + length, SEEN, causal=False)
    for tail, reply in requests:
        prompt = [*(0,) * before, *(2,) * length, *tail]
        found = rig.run(prompt, reply, media=[item], chunk=chunk)
        inside = range(item.start + 1, item.end)
        assert found.cached not in inside
        assert not {capture.offset for capture in found.pending} & {*inside}
