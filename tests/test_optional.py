"""What messages about missing packages advise."""

import importlib.machinery
import importlib.util
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jaxdelegate.optional import install, needs, optional_module

ROOT = Path(__file__).parents[1]


def test_extras_are_named_by_their_packages() -> None:
    assert install("tpu") == "pip install 'jax[tpu]'"
    assert install("report").startswith("pip install 'matplotlib>=")
    assert "'uvicorn>=" in install("grpc")  # of the extra in the extra
    assert "'tritonclient[grpc]>=" in install("grpc")


def test_without_an_installation_a_clone_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxdelegate.optional._OURS", "is-not-installed")
    assert install("report") == "pip install '.[report]'"


def test_the_error_names_the_module() -> None:
    error = needs("serving", ModuleNotFoundError(name="uvicorn"), "serve")
    assert str(error).startswith("serving needs uvicorn: pip install 'httptools>=")


def test_nothing_advises_to_install_this_package_by_its_name() -> None:
    """On PyPI whatever may have the name, it is not this package."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    advice = r"pip install[^.]*['\" ]jaxdelegate\b"
    found = subprocess.run(
        ["git", "grep", "-nE", advice, "--", "docs", "examples", "jaxdelegate", "README.md"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.stdout == ""


def test_threads_import_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package, and a module that it imports itself."""
    package = tmp_path / "importing"
    package.mkdir()
    (package / "__init__.py").write_text("import importing.part")
    (package / "part.py").write_text("value = 5")
    begun = threading.Event()

    class Slow(importlib.machinery.SourceFileLoader):
        def create_module(self, _spec: object) -> None:
            begun.set()
            time.sleep(0.1)  # the other thread begins

    class Finder:
        @staticmethod
        def find_spec(name: str, *_: object) -> object:
            path = str(package / "__init__.py")
            slow = importlib.util.spec_from_file_location(name, path, loader=Slow(name, path))
            return slow if name == "importing" else None

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    with ThreadPoolExecutor(2) as threads:
        whole = threads.submit(optional_module, "importing", "lm")
        assert begun.wait(5)
        part = threads.submit(optional_module, "importing.part", "lm")
        assert whole.result().part is part.result()
