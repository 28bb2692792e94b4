"""The images of native requests (08 API-11)."""

import base64
import json

import pytest

from forerun.api.ollama.chat import ChatBody, chat_ask
from forerun.api.ollama.generate import GenerateBody, generate_ask
from forerun.api.ollama.images import decode_image, refuse_images
from forerun.base.errors import RequestError
from forerun.protocol.codec import decode

PICTURE = base64.b64encode(b"\x89PNG\r\n\x1a\n\xff\xfe").decode()
SOUND = base64.b64encode(b"RIFF\x24\x00\x00\x00WAVEfmt ").decode()


@pytest.mark.parametrize(("data", "kind"), [(PICTURE, "image"), (SOUND, "audio")])
def test_media_are_refused_by_their_kind(data: str, kind: str) -> None:
    """08 API-11, API-17: told from the bytes."""
    with pytest.raises(RequestError, match=f"'m' does not support {kind} input"):
        refuse_images([data], "m", "images")


@pytest.mark.parametrize("images", [None, []])
def test_no_images_are_no_fault(images: list[str] | None) -> None:
    """08 API-11, E13."""
    refuse_images(images, "m", "images")


@pytest.mark.parametrize("text", ["", "?", "http://a/b.png", "/tmp/a b.png", "é", "A", "====="])
def test_what_is_no_base64_is_refused_by_its_place(text: str) -> None:
    """08 API-11: addresses and paths too."""
    with pytest.raises(RequestError, match=r"^images\[1\] is"):
        refuse_images([PICTURE, text], "m", "images")


def test_the_place_in_a_chat_is_named() -> None:
    """08 API-11."""
    messages = [{"role": "user"}, {"role": "user", "images": ["?"]}]
    with pytest.raises(RequestError, match=r"messages\[1\]\.images\[0\]"):
        chat_ask(decode(json.dumps({"model": "m", "messages": messages}), ChatBody))
    with pytest.raises(RequestError, match="does not support image input"):
        body = {"model": "m", "prompt": "what is it", "images": [PICTURE]}
        generate_ask(decode(json.dumps(body), GenerateBody))


def test_a_data_address_is_its_data() -> None:
    """08 API-11: whatever it says of itself."""
    assert decode_image("data:image/png;charset=x;BASE64,aGk=", "images[0]") == b"hi"
