"""`jaxdelegate demo --web`: missing packages, and its flags."""

import subprocess
import sys

import pytest

from jaxdelegate.tools.main import main


@pytest.mark.parametrize("name", ["gradio", pytest.param("PIL", marks=pytest.mark.exhaustive)])
def test_without_an_extra(name: str) -> None:
    code = (
        f"import sys; sys.modules[{name!r}] = None; from jaxdelegate.tools.main import main; "
        "sys.exit(main(['demo', '--web']))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert process.returncode == 1
    printed = process.stderr.decode()
    assert f"{name} is not installed" in printed
    assert "pip install 'av>=" in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize("flag", ["--port=8000", "--host=0.0.0.0"])
def test_addresses_are_for_the_page(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", flag]) == 1
    assert "--port and --host are for --web" in capsys.readouterr().err
