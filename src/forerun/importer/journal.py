"""Which tensors of a source are in the store already, so that a repeated import goes on.

A line is added once its blob is on disk. A half-written last line, or one whose blob was collected
since, only means that the tensor is converted again (CAT-4).
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from forerun.base.errors import RequestError
from forerun.store.blobs import Blob, Digest

FORMAT = 1  # of the blobs; a change of it makes older journals count for nothing


@dataclass(slots=True)
class Journal:
    path: Path
    _done: dict[str, Blob] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.path.exists():
            for line in self.path.read_text(errors="replace").splitlines():
                self._remember(line)

    def _remember(self, line: str) -> None:
        try:
            form, name, digest, size = json.loads(line)
            if form == FORMAT:
                self._done[name] = Blob(Digest.parse(digest), int(size))
        except (ValueError, TypeError, RequestError):
            return  # cut short when its writer was killed

    def done(self, name: str) -> Blob | None:
        return self._done.get(name)

    def add(self, name: str, blob: Blob) -> None:
        self._done[name] = blob
        line = json.dumps([FORMAT, name, str(blob.digest), blob.size])
        with self.path.open("a") as file:
            file.write(f"\n{line}\n")  # not glued to what a killed writer left

    def forget(self) -> None:
        self._done.clear()
        self.path.unlink(missing_ok=True)
