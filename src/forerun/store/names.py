"""Names of models, and the only way from a name to a path (spec 07 CAT-1, CFG-3)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from forerun.base.errors import RequestError, UnsupportedError
from forerun.base.shown import shown

LOCAL_HOST = "forerun"
HUB_HOST = "hf.co"
DEFAULT_NAMESPACE = "library"
DEFAULT_TAG = "latest"

_HUB_ALIASES = {"hf.co", "huggingface.co"}
_SEGMENT = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9_-])?")
# Opened anywhere under Windows, with any extension, these are devices and not files.
_DEVICE = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)
_GRAMMAR = "a name is [namespace/]model[:tag] or hf.co/org/model[:revision]"


@dataclass(frozen=True, slots=True, order=True)
class ModelName:
    """A full name; each part is a plain file name on every system, so no name leaves the store."""

    host: str
    namespace: str
    model: str
    tag: str

    def __post_init__(self) -> None:
        if self.host not in (LOCAL_HOST, HUB_HOST):
            raise UnsupportedError(
                f"models come from the built-in catalogue or from hf.co/ORG/NAME, "
                f"and not from {shown(self.host)}"
            )
        for part, text in (
            ("namespace", self.namespace),
            ("model", self.model),
            ("tag", self.tag),
        ):
            if not _SEGMENT.fullmatch(text) or _DEVICE.fullmatch(text):
                raise RequestError(
                    f"{shown(text)} cannot be the {part} of a model name; use letters, digits, "
                    f"'.', '_' and '-' ({_GRAMMAR})"
                )

    @classmethod
    def parse(cls, text: str) -> "ModelName":
        """The name that `text` stands for, defaults filled in.

        Raises RequestError for what is no name, UnsupportedError for a host that is not served.
        """
        *parts, last = _without_scheme(text).split("/")
        model, colon, tag = last.partition(":")
        if text.startswith((".", "/", "~")) or last.endswith((".gguf", ".safetensors")):
            raise RequestError(
                f"{shown(text)} is a file or folder; make it a model first: a Modelfile with FROM "
                f"and its path, then `forerun create NAME`"
            )
        if len(parts) > 2:
            raise RequestError(f"{shown(text)} has too many parts; {_GRAMMAR}")
        host, namespace = LOCAL_HOST, DEFAULT_NAMESPACE
        if len(parts) == 2:
            host, namespace = parts
        elif len(parts) == 1 and _looks_like_a_host(parts[0]):
            host = parts[0]
        elif len(parts) == 1:
            namespace = parts[0]
        host = HUB_HOST if host.lower() in _HUB_ALIASES else host.lower()
        if host == HUB_HOST and len(parts) == 1:
            raise RequestError(f"{shown(text)} lacks a part; write hf.co/ORG/NAME")
        return cls(host, namespace, model, tag if colon else DEFAULT_TAG)

    @classmethod
    def from_path(cls, parts: Sequence[str]) -> "ModelName | None":
        """The name whose manifest lies at `parts` under the manifests, None if no name does."""
        try:
            return cls(*parts)
        except (RequestError, UnsupportedError, TypeError):
            return None

    @property
    def on_hub(self) -> bool:
        """Whether the name is itself a source, a repository on hf.co."""
        return self.host == HUB_HOST

    @property
    def repository(self) -> str:
        """`org/name` on hf.co."""
        assert self.on_hub, f"{self} is no repository"
        return f"{self.namespace}/{self.model}"

    @property
    def revision(self) -> str:
        """The revision of the repository that the tag asks for."""
        return "main" if self.tag == DEFAULT_TAG else self.tag

    def path(self, manifests: Path) -> Path:
        """Where the manifest of this name lies."""
        return manifests / self.host / self.namespace / self.model / self.tag

    def __str__(self) -> str:
        """The shortest text that parses to this name again; the tag always stands."""
        name = f"{self.model}:{self.tag}"
        if self.on_hub or "." in self.namespace:
            return f"{self.host}/{self.namespace}/{name}"
        return name if self.namespace == DEFAULT_NAMESPACE else f"{self.namespace}/{name}"


def _without_scheme(text: str) -> str:
    """An address copied from a browser is the name that it shows."""
    for scheme in ("https://", "http://"):
        if text.lower().startswith(scheme):
            return text[len(scheme) :].rstrip("/")
    return text


def _looks_like_a_host(text: str) -> bool:
    return "." in text or ":" in text or text.lower() == "localhost"
