"""Media ranges in a prompt: 02 MED, BEG-3, and scenarios 15, 16 and 22, with made-up items."""

import pytest

from fixtures.checked_rig import CASES, NEVER, REWINDING, CheckedRig, each
from fixtures.layer_kinds import effective
from forerun.base.errors import BusyError
from forerun.prefix.keys import MediaRange, fold

TEXT = list(range(100, 140))
PLACEHOLDER = 9
IMAGE, OTHER_IMAGE = b"\x89PNG" + bytes(60), b"\x89PNG" + bytes(59) + b"\x01"


def item(start, end, data=IMAGE, *, causal=False):
    return MediaRange(start, end, fold(data, (224, 224)), causal)


def prompt(start, end, tail=TEXT[20:36]):
    """Text, an item's placeholders at `[start, end)`, and more text."""
    return [*TEXT[:start], *[PLACEHOLDER] * (end - start), *tail]


@each(CASES)
def test_scenario_15_a_probe_that_differs_right_after_an_item(layout, look_ahead):
    """02 scenario 15: BEG-3. With pairs the item's last key holds the token after it, so the
    request resumes at the item's start; else at its end.
    """
    rig = CheckedRig(layout, look_ahead)
    image = item(10, 16)
    rig.run(prompt(10, 16), media=[image])
    probe = rig.run(prompt(10, 16, tail=[1, 2, 3, 4, 5, 6]), media=[image])
    assert probe.matched == 16 - look_ahead
    start = 10 if look_ahead else 16
    if layout == "kv" or not look_ahead:
        assert probe.cached == start
    else:
        assert probe.cached == 7  # the last capture before the item
        assert probe.pending[0].offset == start
        assert probe.pending[0].user is False
    again = rig.run(prompt(10, 16, tail=[7, 8]), media=[image])
    assert again.cached == start


@each(CASES)
def test_scenario_16_prompts_with_different_images_share_only_the_text_before(layout, look_ahead):
    """02 scenario 16: 02 KEY-9. Equal text, equal sizes and equal placeholders."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(prompt(10, 16), [200], media=[item(10, 16)])
    second = rig.run(prompt(10, 16), [200], media=[item(10, 16, OTHER_IMAGE)])
    assert second.matched == 10 - look_ahead
    first = rig.run([*prompt(10, 16), 200, 5], media=[item(10, 16)])
    assert first.matched == first.cached == 32


def test_scenario_22_folds_of_many_images_never_meet():
    """02 scenario 22: 02 KEY-2. A shared beginning, the same image twice, and 10^5 images."""
    assert fold(IMAGE, (224, 224)) != fold(OTHER_IMAGE, (224, 224))
    assert fold(IMAGE, (224, 224)) != fold(IMAGE[:32], (224, 224))
    assert fold(IMAGE, (224, 224)) == fold(bytes(bytearray(IMAGE)), (224, 224))
    many = [fold(IMAGE + number.to_bytes(4, "little"), (224, 224)) for number in range(100_000)]
    assert len(set(many)) == len(many)
    assert min(many) >= 1 << 31


@each(CASES)
@pytest.mark.parametrize("shared", [18, 19])
@pytest.mark.parametrize("chunk", [7, 512])
def test_nothing_resumes_or_is_captured_inside_an_item(layout, look_ahead, shared, chunk):
    """MED-1, 02 SCH-3: its tokens see each other, so it is evaluated whole or not at all."""
    rig = CheckedRig(layout, look_ahead)
    image, story = item(10, 18), prompt(10, 18)
    first = rig.run(story, media=[image], chunk=chunk)
    probe = rig.run([*story[:shared], *range(300, 310)], media=[image], chunk=chunk)
    again = rig.run([*story[:shared], *range(400, 410)], media=[image], chunk=chunk)
    for found in (first, probe, again):
        assert not [it for it in found.pending if 10 < it.offset < 18]
        assert not 10 < found.cached < 18
    matched = shared - look_ahead
    assert again.cached == (10 if matched < 18 else matched)


@each(REWINDING)
def test_a_causal_item_may_be_cut_anywhere(layout, look_ahead):
    """MED-2: text and sound are evaluated left to right."""
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    long, short = item(10, 18, causal=True), item(10, 14, causal=True)
    rig.run(prompt(10, 18), media=[long])
    probe = rig.run(prompt(10, 14), media=[short])
    assert probe.matched == probe.cached == 14 - look_ahead


@each(REWINDING)
def test_an_item_that_cannot_be_cut_is_evaluated_from_its_start(layout, look_ahead):
    """BEG-3, MED-1: as above, but its tokens see each other."""
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    rig.run(prompt(10, 18), media=[item(10, 18)])
    probe = rig.run([*prompt(10, 16), 1, 2], media=[item(10, 16)])
    # as far as the keys go the smaller item agrees, one token short of its end with pairs
    assert probe.matched == 16 - look_ahead
    assert probe.cached == (10 if look_ahead else 16)


@each(CASES)
def test_an_exact_repeat_that_ends_with_an_item(layout, look_ahead):
    """BEG-2, BEG-3: keeping one token back would cut the item, so all of it is evaluated."""
    rig = CheckedRig(layout, look_ahead)
    story, image = prompt(10, 16, tail=[]), item(10, 16)
    rig.run(story, [200, 201, 202], media=[image])
    repeat = rig.run(story, media=[image])
    assert repeat.matched == 16 - look_ahead
    assert repeat.cached <= 10


@each(CASES)
def test_an_item_to_the_end_of_the_prompt_gets_no_capture_at_its_end(layout, look_ahead):
    """MED-3: prefill keeps one token back and does not reach it. The others are taken."""
    rig = CheckedRig(layout, look_ahead)
    story, image = prompt(10, 20, tail=[]), item(10, 20)
    found = rig.run(story, media=[image])
    assert [it.offset for it in found.pending] == [8 - look_ahead, 20]
    assert rig.ends == [8 - look_ahead, 19]


@each(CASES)
def test_two_items_side_by_side(layout, look_ahead):
    """BEG-3, 02 SCH-3: the border between them is inside neither."""
    rig = CheckedRig(layout, look_ahead)
    story = prompt(4, 16)
    first, second, other = item(4, 10), item(10, 16, OTHER_IMAGE), item(10, 16, b"third")
    found = rig.run(story, media=[first, second])
    offsets = [it.offset for it in found.pending]
    assert not [o for o in offsets if 4 < o < 10 or 10 < o < 16]
    probe = rig.run(story, media=[first, other])
    assert probe.matched == 10 - look_ahead
    assert not 4 < probe.cached < 10
    assert not 10 < probe.cached < 16


def test_where_a_checkpoint_before_an_item_lies_in_another_the_one_before_that_serves():
    """BEG-3, MED-1: of refused requests, whose layers stopped where a draft's last pair was open,
    windows are stored inside both items. A window goes back to neither's start by itself.
    """
    rig = CheckedRig("sliding", 1, captures=NEVER)
    media = [item(1, 5), item(7, 11, OTHER_IMAGE)]
    text = [0, *[PLACEHOLDER] * 4, 7, 7, *[PLACEHOLDER] * 4, 8, 8, 8]
    rig.run(text, media=media)
    for end, other in ((5, 20), (11, 30)):
        probe, shown = [*text[:end], other], [seen for seen in media if seen.end <= end]
        rig.run(probe, media=shown)
        refused = [*text[:end], other + 1]
        with pytest.raises(BusyError), rig.prefix.begin(refused, shown):
            rig.forward(effective(refused, shown)[:end])
            raise BusyError("refused")
        assert rig.offset == end - 1
        rig.check()
    found = rig.run([*text[:13], 40], media=media)
    assert found.matched == 12
    assert found.cached <= 1
