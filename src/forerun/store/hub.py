"""Models of hf.co: safetensors, their index, configuration, tokenizer and template (CAT-4).

Never a pickle, never code: what is not on the list of wanted files is not asked for.
"""

import contextlib
import hashlib
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from forerun.base.errors import ImportFailedError, NotFoundError, RequestError, StoreError
from forerun.base.shown import shown
from forerun.store.blobs import CHUNK_BYTES, Progress
from forerun.store.catalogue import HubSource
from forerun.store.inventory import (
    CHAT_TEMPLATE,
    CONFIG,
    INDEX,
    is_pooling_config,
    read_index,
    unindexed_weights,
)

_PLAIN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_TEXTS: Final = {CHAT_TEMPLATE, "tokenizer.model", "vocab.txt", "merges.txt"}
_PARTIAL: Final = ".partial"
_MAX_BYTES: Final = 50 * 1000**3  # what the hub serves over plain HTTP
_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a repository, with the digest that the hub gives it: sha256, or git's sha1."""

    name: str
    size: int
    sha256: str | None
    git_id: str | None


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository at one commit."""

    name: str  # org/name
    commit: str
    files: tuple[HubFile, ...]  # all that it has

    @property
    def download_key(self) -> str:
        """Under which key of `Downloads` it is fetched: what belongs to one commit stays apart."""
        return f"{self.name.replace('/', '--')}--{self.commit}"


def find_repository(source: HubSource) -> Repository:
    """Ask the hub what a revision stands for, and which files it has.

    Raises NotFoundError, RequestError (no access) or ImportFailedError (no network).
    """
    from huggingface_hub import HfApi

    with _asking(source.repository):
        info = HfApi().model_info(
            source.repository, revision=source.revision, files_metadata=True, timeout=_TIMEOUT_S
        )
    if info.sha is None or not _COMMIT.fullmatch(info.sha):
        raise ImportFailedError(f"hf.co gives {source.repository} no commit; pull again later")
    files = [
        HubFile(
            name=file.rfilename,
            size=file.size or 0,
            sha256=None if file.lfs is None else file.lfs.sha256,
            git_id=file.blob_id,
        )
        for file in info.siblings or []
    ]
    return Repository(source.repository, info.sha, tuple(files))


def fetch_repository(
    repository: Repository,
    folder: Path,
    progress: Progress | None = None,
    *,
    only: Sequence[str] = (),
) -> None:
    """Fetch what a model needs into `folder`, or just the files named in `only`.

    Files that are there and right are kept, and a file begun earlier is continued.
    """
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    disable_progress_bars("huggingface_hub.http_get")  # ours is shown instead
    files = {file.name: file for file in repository.files}
    index = None
    if INDEX in files and not only:
        _fetch(repository, files[INDEX], folder, _ignore)
        index = read_index(folder / INDEX)
    wanted = [files[n] for n in _checked(repository, only or select(files, index), files)]
    total = sum(file.size for file in wanted)
    before = 0
    for file in wanted:

        def report(completed: int, before: int = before) -> None:
            if progress is not None:
                progress(min(before + completed, total), total)

        _fetch(repository, file, folder, report)
        before += file.size
        report(0, before)


def select(names: Iterable[str], index: Mapping[str, str] | None) -> list[str]:
    """The files that a model needs among a repository's, by name alone.

    `index` is the content of the shard index, None if there is none. Only files at the top count,
    and the file that says how embeddings are pooled.
    """
    names = list(names)
    plain = [name for name in names if _PLAIN.fullmatch(name)]
    texts = {name for name in plain if name.endswith(".json") or name in _TEXTS}
    texts -= {name for name in texts if name.endswith(".index.json") and name != INDEX}
    texts |= {name for name in names if is_pooling_config(name)}
    weights = unindexed_weights(plain) if index is None else set(index.values())
    return sorted(texts) + sorted(weights)


def _checked(
    repository: Repository, names: Sequence[str], files: Mapping[str, HubFile]
) -> Sequence[str]:
    for name in names:
        if name not in files or not (_PLAIN.fullmatch(name) or is_pooling_config(name)):
            raise RequestError(
                f"hf.co/{repository.name} is incomplete: it has no {shown(name)}, which its own "
                f"index asks for"
            )
    if CONFIG not in names or not any(name.endswith(".safetensors") for name in names):
        raise RequestError(
            f"hf.co/{repository.name} has no {CONFIG} with safetensors weights; for a GGUF file, "
            f"fetch it yourself and create a model FROM it"
        )
    return names


def _ignore(completed: int) -> None:
    del completed


def _fetch(
    repository: Repository, file: HubFile, folder: Path, report: Callable[[int], None]
) -> None:
    """One file, whole and checked, in place of what was there."""
    target = folder / file.name
    if target.is_file() and _is_right(target, file):
        return
    partial = folder / _PARTIAL / file.name
    with _writing(partial):
        partial.parent.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(exist_ok=True)
        with _Reporting(partial, report) as growing:
            with _asking(repository.name):
                _download(repository, file, growing)
            growing.flush()
            os.fsync(growing.fileno())
    if not _is_right(partial, file):
        partial.unlink()
        raise ImportFailedError(f"{file.name} of hf.co/{repository.name} came damaged; pull again")
    os.replace(partial, target)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as reason:
        raise StoreError(
            f"cannot write {path}: {reason.strerror or reason}; make room there and pull again"
        ) from None


class _Reporting(io.BufferedWriter):
    """A file that is continued, and tells how long it is after every write."""

    def __init__(self, path: Path, report: Callable[[int], None]) -> None:
        path.touch()
        super().__init__(io.FileIO(path, "r+"))
        self.seek(0, os.SEEK_END)
        self._path = path
        self._report = report

    def write(self, data: "bytes | bytearray | memoryview", /) -> int:  # type: ignore[override]
        with _writing(self._path):  # here, so that a full disk is not taken for a network fault
            written = super().write(data)
        self._report(self.tell())
        return written


def _download(repository: Repository, file: HubFile, growing: _Reporting) -> None:
    """Append what is missing. The hub's own function for whole files cannot continue one."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    if file.size > _MAX_BYTES:
        raise ImportFailedError(
            f"{file.name} of hf.co/{repository.name} is larger than 50 GB, which hf.co gives to "
            f"`hf download` alone; use that, then create a model FROM its folder"
        )
    if growing.tell() > file.size:
        growing.seek(0)
        growing.truncate()
    url = hf_hub_url(repository.name, file.name, revision=repository.commit)
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    location = get_hf_file_metadata(url).location
    if urlsplit(location).netloc != urlsplit(url).netloc:
        headers.pop("authorization", None)  # the token is the hub's, not its file servers'
    http_get(
        location,
        growing,
        resume_size=growing.tell(),
        headers=headers,
        expected_size=file.size,
    )


def _is_right(path: Path, file: HubFile) -> bool:
    """Whether a file has the size and the digest that the hub states."""
    if path.stat().st_size != file.size:
        return False
    if file.sha256 is not None:
        hasher, expected = hashlib.sha256(), file.sha256
    elif file.git_id is not None:
        hasher, expected = hashlib.sha1(b"blob %d\0" % file.size), file.git_id
    else:
        return True
    with open(path, "rb") as content:
        while chunk := content.read(CHUNK_BYTES):
            hasher.update(chunk)
    return hasher.hexdigest() == expected


@contextlib.contextmanager
def _asking(repository: str) -> Iterator[None]:
    """What goes wrong between us and the hub, in one sentence that says what to do."""
    from huggingface_hub import errors

    name = f"hf.co/{repository}"
    try:
        yield
    except errors.GatedRepoError:
        raise RequestError(
            f"{name} is gated: accept its terms on its page, then log in with `hf auth login` and "
            f"pull again"
        ) from None
    except errors.RevisionNotFoundError:
        raise NotFoundError(f"{name} has no such revision; leave it out for the newest") from None
    except errors.RepositoryNotFoundError:
        raise NotFoundError(
            f"{name} is not there, or is private: check the name, or log in with `hf auth login`"
        ) from None
    except errors.HFValidationError:
        raise RequestError(f"{name} cannot be a repository; write hf.co/ORG/NAME") from None
    except errors.OfflineModeIsEnabled:
        raise ImportFailedError(
            f"cannot fetch {name}: HF_HUB_OFFLINE is set; unset it and pull again"
        ) from None
    except errors.HfHubHTTPError as reason:
        raise ImportFailedError(
            f"cannot fetch {name}: the hub answered {reason.response.status_code}; pull again later"
        ) from None
    except (errors.HTTPError, OSError) as reason:  # type: ignore[attr-defined]
        # HTTPError is the base of what the hub's HTTP library raises; in older ones, OSError.
        said = (str(reason) or type(reason).__name__).split("\n")[0]
        raise ImportFailedError(
            f"cannot fetch {name} ({said}); check the network and pull again, what came so far "
            f"counts"
        ) from None
