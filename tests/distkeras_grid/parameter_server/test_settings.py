import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.parameter_server.settings import ServerSettings


@pytest.mark.parametrize(
    "change",
    [
        {"port": 65536},
        {"run": ""},
        {"port_retries": -1},
    ],
)
def test_settings_out_of_range_are_refused(tools, change):
    with pytest.raises(ConfigurationError, match=next(iter(change))):
        tools.settings(**change)


def test_unknown_and_missing_settings_are_refused(tools):
    with pytest.raises(ConfigurationError):
        ServerSettings.from_json({**tools.settings().to_json(), "prt": 1})
    described = tools.settings().to_json()
    described["spec"]["schedule"]["seats"] = 1
    with pytest.raises(ConfigurationError):
        ServerSettings.from_json(described)
    with pytest.raises(ConfigurationError):
        ServerSettings.from_json({"run": "a"})
