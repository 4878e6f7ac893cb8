"""`jaxdelegate demo --web` without what it needs, and its flags."""

import sys

import pytest

from jaxdelegate.tools.main import main


@pytest.mark.parametrize("name", ["gradio", "PIL"])
def test_without_an_extra(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in [m for m in sys.modules if m.startswith("jaxdelegate.demo")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    assert main(["demo", "--web"]) == 1
    printed = capsys.readouterr().err
    assert f"--web needs {name}, which is not installed: pip install 'jaxdelegate[web]'" in printed


@pytest.mark.parametrize("flag", ["--port=8000", "--host=0.0.0.0"])
def test_addresses_are_for_the_page(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", flag]) == 1
    assert "--port and --host are for --web" in capsys.readouterr().err
