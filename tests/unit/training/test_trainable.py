"""Which models heads are trained for; what is said of one without an architecture."""

import pytest

from forerun.base.errors import LoadError
from forerun.models.config import ConfigReader
from forerun.models.registry import find
from forerun.training.trainable import architecture_of


@pytest.mark.parametrize("config", [{}, {"architectures": None}, {"architectures": []}])
def test_a_config_without_an_architecture_is_told_as_a_load_tells_it(
    config: dict[str, object],
) -> None:
    """The model is at fault: it is no architecture that is not offered."""
    with pytest.raises(LoadError, match=r"names no architecture .*; import it again$") as trained:
        architecture_of(config)
    with pytest.raises(LoadError) as loaded:
        find(ConfigReader(config))
    assert str(trained.value) == str(loaded.value)
