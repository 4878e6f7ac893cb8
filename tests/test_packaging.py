"""What is installed is what git holds, with and without symbolic links in the checkout."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import jaxdelegate as jd

ROOT = Path(__file__).parents[1]
SHIPPED = (".py", ".css", ".html", ".js", ".tflite")
LIBRARIES = {  # and the compiler that each takes
    "litert/libjaxdelegate.so": "cc",
    "litert/libLiteRtGpuAccelerator.so": "cc",
    "kernels/libjaxdelegate_kernels.so": "c++",
}


def tracked() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    return subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\n")


def installed_name(path: str) -> str | None:
    """Where a tracked file lies in the wheel; None: it does not."""
    top, _, rest = path.partition("/")
    if top in ("op_lowering", "quant") and rest.endswith(".py"):
        return f"jaxdelegate/{path}"
    if top == "jaxdelegate" and (rest == "py.typed" or Path(rest).suffix in SHIPPED):
        return path
    return None


@pytest.mark.slow
@pytest.mark.parametrize("links", [True, False], ids=["symlinks", "no-symlinks"])
def test_the_wheel_holds_every_module(tmp_path: Path, links: bool) -> None:
    source = tmp_path / "source"
    for name in filter(None, tracked()):
        path, copy = ROOT / name, source / name
        if path.is_symlink():
            copy.parent.mkdir(parents=True, exist_ok=True)
            # Without core.symlinks, git writes a text file with the link's target.
            copy.symlink_to(path.readlink()) if links else copy.write_text(str(path.readlink()))
        elif path.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--outdir",
        str(tmp_path / "dist"),
        str(source),
    ]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    inside = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    built = {f"jaxdelegate/{name}" for name, needed in LIBRARIES.items() if shutil.which(needed)}
    assert inside == set(filter(None, map(installed_name, tracked()))) | built
    assert "-py3-none-" in wheel.name  # the libraries have no Python version of its own


@pytest.mark.slow
def test_an_editable_install_is_found_next_to_the_clone(tmp_path: Path) -> None:
    """From the folder that holds the clone, whose own folder has the package's name."""
    clone = tmp_path / "jaxdelegate"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv/bin/python"
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--editable", clone]
    subprocess.run(install, check=True, capture_output=True)
    code = "import jaxdelegate; print(jaxdelegate.__version__)"
    done = subprocess.run(
        [python, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.strip() == jd.__version__


def test_links_are_relative_and_committed() -> None:
    modes = subprocess.run(
        ["git", "ls-files", "-s", "jaxdelegate"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    links = {line.split("\t")[1] for line in modes.stdout.splitlines() if line.startswith("120000")}
    assert links == {"jaxdelegate/op_lowering", "jaxdelegate/quant"}
    assert (ROOT / "jaxdelegate" / "quant").readlink() == Path("../quant")
