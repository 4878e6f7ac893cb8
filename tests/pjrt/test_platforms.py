"""When a delegate can predict its platform without importing jax."""

from pathlib import Path

import pytest

from jaxdelegate.pjrt import platforms
from jaxdelegate.pjrt.platforms import has_plugin, is_cpu, means_cpu


@pytest.mark.parametrize(
    ("environment", "has_device", "is_certain"),
    [
        ({}, False, True),
        ({}, True, False),
        ({"JAX_PLATFORMS": ""}, False, True),
        ({"JAX_PLATFORMS": "cpu"}, True, True),
        ({"JAX_PLATFORM_NAME": "cpu"}, True, True),
        ({"JAX_PLATFORMS": "cuda"}, False, False),
        ({"JAX_PLATFORMS": "cuda,cpu"}, False, False),
        ({"JAX_PLATFORM_NAME": "gpu"}, False, False),
    ],
)
def test_the_environment_and_devices_decide(
    environment: dict[str, str], has_device: bool, is_certain: bool
) -> None:
    assert means_cpu(environment, [], has_device) is is_certain


def test_a_plugin_may_bring_another_platform(tmp_path: Path) -> None:
    assert means_cpu({}, [str(tmp_path), str(tmp_path / "absent")], False)
    (tmp_path / "jax_plugins").mkdir()
    assert not means_cpu({}, [str(tmp_path)], False)
    assert means_cpu({"JAX_PLATFORMS": "cpu"}, [str(tmp_path)], True)


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("p-1.0.dist-info", "[jax_plugins]\nmine = p\n", True),
        ("p-1.0.egg-info", "[console_scripts]\nx = y\n\n[jax_plugins]\nmine = p\n", True),
        ("p-1.0.dist-info", "[console_scripts]\nx = y\n", False),
        ("p", "[jax_plugins]\nmine = p\n", False),
    ],
)
def test_plugins_have_entry_points(tmp_path: Path, name: str, text: str, found: bool) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "entry_points.txt").write_text(text)
    (tmp_path / "q-2.0.dist-info").mkdir()  # without entry points
    assert has_plugin(str(tmp_path)) is found


def test_a_given_platform_is_not_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "means_cpu", lambda *_: False)
    assert [is_cpu(platform) for platform in ("cpu", "gpu", "tpu", None)] == [
        True,
        False,
        False,
        False,
    ]
