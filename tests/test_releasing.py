"""The list for a release in CONTRIBUTING.md: its commands exist, and do what it says."""

import re
import runpy
import shutil
import subprocess
import types
from pathlib import Path

import pytest

import jaxdelegate

ROOT = Path(__file__).parents[1]
LIST = (ROOT / "CONTRIBUTING.md").read_text().partition("## To release")[2]
BLOCKS = re.findall(r"```sh\n(.*?)```", LIST, re.DOTALL)


def test_the_numbers_of_a_version(tmp_path: Path) -> None:
    files = "jaxdelegate/version.py", "CITATION.cff", "CHANGELOG.md"
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    numbers = BLOCKS[0].replace("version=0.1.0", "version=7.8.9")
    assert numbers != BLOCKS[0]
    subprocess.run(["bash", "-euc", numbers], cwd=tmp_path, check=True)
    version, citation, changes = ((tmp_path / file).read_text() for file in files)
    assert '\n__version__ = "7.8.9"\n' in version
    assert "\nversion: 7.8.9\n" in citation
    assert re.search(r"\n## Unreleased\n\n## 7\.8\.9 - \d{4}-\d\d-\d\d\n", changes)


@pytest.mark.parametrize(
    ("command", "file", "definition"),
    [
        (r"\bmake ([\w-]+)", "Makefile", r"^{}:"),
        (r"\bnox -s ((?:\w+ ?)+)", "noxfile.py", r"^def {}\("),
        (r"^(\.ci/run)$", ".ci/run", ""),
    ],
)
def test_commands_exist(command: str, file: str, definition: str) -> None:
    found = [word for m in re.findall(command, "".join(BLOCKS), re.MULTILINE) for word in m.split()]
    assert found
    text = (ROOT / file).read_text()
    for name in found:
        assert re.search(definition.format(re.escape(name)), text, re.MULTILINE), name


def test_the_site_has_the_version() -> None:
    """What `make check-docs` finds on all pages."""
    hook = runpy.run_path(str(ROOT / "docs" / "site_version.py"))["on_config"]
    config = types.SimpleNamespace(docs_dir=str(ROOT / "docs"), copyright=None)
    assert hook(config) is config
    assert config.copyright == f"jaxdelegate {jaxdelegate.__version__}"
    assert "\nhooks:\n  - docs/site_version.py\n" in (ROOT / "mkdocs.yml").read_text()
