"""The `images` of a request: what clients send as base64 (08 API-11)."""

import base64
import binascii
import re
from collections.abc import Sequence

from forerun.base.errors import RequestError
from forerun.base.shown import shown

_DATA_URL = re.compile(r"data:[^,]*;base64,", re.IGNORECASE)
_STANDARD_ALPHABET = str.maketrans("-_", "+/")


def refuse_images(images: Sequence[str] | None, model: str, where: str) -> None:
    """RequestError if there is an image: no model takes any yet. None and an empty list are none.

    What is not base64 is told first, by its place in the field `where`.
    """
    media = [decode_image(text, f"{where}[{place}]") for place, text in enumerate(images or ())]
    if media:
        raise RequestError(
            f"model {shown(model)} does not support {kind_of(media[0])} input; send text only"
        )


def decode_image(text: str, where: str) -> bytes:
    """The bytes in base64, also URL-safe, with newlines or after `data:...;base64,`."""
    body = "".join(_DATA_URL.sub("", text, count=1).split()).rstrip("=")
    padded = body.translate(_STANDARD_ALPHABET) + "=" * (-len(body) % 4)
    try:
        data = base64.b64decode(padded, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if not data:
        raise RequestError(f"{where} is {shown(text)}; send the base64 of a file's bytes")
    return data


def kind_of(data: bytes) -> str:
    """ "audio" for a WAV file, else "image": the field carries both."""
    return "audio" if data[:4] == b"RIFF" and data[8:12] == b"WAVE" else "image"
