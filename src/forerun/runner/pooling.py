"""How a checkpoint pools embeddings: sentence-transformers' own files (spec 08 API-13).

`modules.json` lists the steps from text to vector; the step that pools has a folder with a
config.json. Prompts that such a checkpoint puts before queries are not applied: callers send them.
"""

from collections.abc import Iterator

from forerun.base.errors import LoadError
from forerun.base.json_types import JsonObject, JsonValue
from forerun.base.shown import shown
from forerun.engine.pooling import MODES, Pooling
from forerun.store.fields import parse_json
from forerun.store.stored import StoredModel

MODULES = "modules.json"
FOLDER = "1_Pooling"  # where nothing lists the steps
CONFIG = "config.json"
DONE_ANYWAY = ("Transformer", "Normalize")

# In the order in which their vectors follow one another.
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def read_pooling(stored: StoredModel) -> Pooling:
    """As the model's files say; the mean where it has none. LoadError for what is unknown."""
    folders = list(_folders(stored))
    if len(folders) > 1:
        raise LoadError(f"{MODULES} pools twice, in {' and '.join(map(shown, folders))}")
    folder = folders[0] if folders else FOLDER
    path = f"{folder}/{CONFIG}"
    config = _json(stored, path)
    if config is None and folders:
        raise LoadError(f"{MODULES} names {shown(path)}, which is not here; import the model again")
    if config is None:
        return Pooling()
    if not isinstance(config, dict):
        raise LoadError(f"{path} is no JSON object")
    return Pooling(tuple(_modes(config, path)) or Pooling().modes)


def _folders(stored: StoredModel) -> Iterator[str]:
    """Those of the steps that pool. Any step but these would change the vectors."""
    modules = _json(stored, MODULES)
    for module in modules if isinstance(modules, list) else []:
        kind = module.get("type") if isinstance(module, dict) else None
        name = kind.rpartition(".")[2] if isinstance(kind, str) else None
        if isinstance(module, dict) and name == "Pooling":
            yield str(module.get("path"))
        elif name not in DONE_ANYWAY:
            raise LoadError(
                f"{MODULES} has a step of type {shown(kind)}; Pooling and "
                f"{', '.join(DONE_ANYWAY)} are supported"
            )


def _modes(config: JsonObject, path: str) -> Iterator[str]:
    """`pooling_mode` in newer files, a flag for each in older ones."""
    if "pooling_mode" in config:
        stated = config["pooling_mode"]
        for mode in stated if isinstance(stated, list) else [stated]:
            if not isinstance(mode, str) or mode.lower() not in MODES:
                raise _unknown(path, mode)
            yield mode.lower()
        return
    for name, value in config.items():
        if name.startswith("pooling_mode") and value and name not in FLAGS:
            raise _unknown(path, name)
    yield from (mode for name, mode in FLAGS.items() if config.get(name))


def _unknown(path: str, mode: JsonValue) -> LoadError:
    return LoadError(f"{path} pools by {shown(mode)}; supported are {', '.join(MODES)}")


def _json(stored: StoredModel, path: str) -> JsonValue:
    layer = stored.json_layer(path)
    if layer is None:
        return None
    return parse_json(stored.read(layer), path, LoadError)
