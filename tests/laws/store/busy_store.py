"""One of several processes that change a store at once. Run as a script by a test.

Arguments: the store, a seed, how many changes to make. Between changes it opens models, as runners
do, without any lock: it must find whole models or clear errors, whatever the others are doing.
"""

import random
import sys
from pathlib import Path

from forerun.base.errors import NotFoundError, StoreError
from forerun.store.manifest import TENSOR, Layer, ModelConfig
from forerun.store.names import ModelName
from forerun.store.store import Store

NAMES = [ModelName.parse(text) for text in ("a:1", "a:2", "b")]
CONTENTS = [bytes([65 + i]) * 5000 for i in range(4)]


def change(store: Store, choice: random.Random) -> None:
    """Pull, remove or copy a model."""
    name, other = choice.choice(NAMES), choice.choice(NAMES)
    kind = choice.randrange(4)
    try:
        if kind < 2:
            with store.importing() as writer:
                blobs = [writer.add_bytes(choice.choice(CONTENTS)) for _ in range(3)]
                layers = [Layer(TENSOR, blob, f"t{i}") for i, blob in enumerate(blobs)]
                writer.publish(name, ModelConfig(), layers)
        elif kind == 2:
            store.delete(name)
        else:
            store.copy(name, other)
    except NotFoundError:
        return  # another was quicker
    except StoreError as error:
        # A copy read a manifest that another removed with its blobs: it is refused, not half done.
        assert kind == 3 and "is missing" in str(error), error  # noqa: PT018


def look(store: Store, choice: random.Random) -> None:
    """Read a model as a runner would."""
    name = choice.choice(NAMES)
    try:
        model = store.get(name)
        contents = [model.read(layer) for layer in model.tensors]
    except NotFoundError:
        return
    except StoreError as error:
        assert "is missing" in str(error), error
        return
    assert len(contents) == 3
    assert all(content in CONTENTS for content in contents)


def main() -> None:
    """Run once."""
    store, choice = Store(Path(sys.argv[1])), random.Random(int(sys.argv[2]))
    for _ in range(int(sys.argv[3])):
        change(store, choice)
        look(store, choice)
        assert not any(entry.damage for entry in store.entries())


if __name__ == "__main__":
    main()
