"""The minutes that `forerun train-draft` takes."""

import pytest
from click.testing import CliRunner

from forerun.cli.train_draft import command
from forerun.settings import Settings


@pytest.mark.parametrize("minutes", ["nan", "inf", "-inf", "1e300", "0"])
def test_a_budget_that_is_no_length_of_time_is_refused_by_its_option(minutes: str) -> None:
    arguments = ["tiny", "--budget-minutes", minutes]
    done = CliRunner().invoke(command, arguments, obj=Settings.from_environment({}))
    assert done.exit_code == 2
    assert "Invalid value for '--budget-minutes'" in done.output.splitlines()[-1]
