"""The web demo in headless Chromium: what a visitor sees; no external requests."""

import contextlib
import importlib.util
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate.testing import ModelBuilder
from sample_tasks.tasks import TASKS
from tests.support.children import compiling_quickly
from tests.support.networks import small_classifier

ROOT = Path(__file__).parents[3]
WAIT = 120  # seconds, for a machine that has other things to do
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",
)  # fmt: skip
MISSING = [
    *(name for name in ("gradio", "selenium", "PIL") if importlib.util.find_spec(name) is None),
    *(name for name in ("chromium", "chromedriver") if shutil.which(name) is None),
]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


# What a shell starts in the background ignores the signal, and so would its children.
HEEDING_CTRL_C = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_path("examples/web_demo", run_name="__main__")
"""


@contextlib.contextmanager
def serving(*flags: str) -> Iterator[tuple[str, subprocess.Popen]]:
    """The page's address, and the process that serves it."""
    port = free_port()
    command = [sys.executable, "-c", HEEDING_CTRL_C, f"--port={port}", *flags]
    environment = compiling_quickly() | {"JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    address = f"http://127.0.0.1:{port}/"
    try:
        end = time.monotonic() + WAIT
        while not responds(address):
            assert process.poll() is None, process.communicate()[0].decode()
            assert time.monotonic() < end
            time.sleep(0.2)
        yield address, process
    finally:
        process.send_signal(signal.SIGINT)  # as a user ends it: its folder is removed
        try:
            process.communicate(timeout=WAIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise


def responds(address: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(address, timeout=10) as response:
            return bool(response.status == 200)
    except OSError:
        return False


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving() as (found, _):
        yield found


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    service = Service(str(shutil.which("chromedriver")))
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


class Page:
    """The page after its first run."""

    def __init__(self, browser: Any, address: str) -> None:
        self.browser = browser
        self.address = address
        browser.get("about:blank")  # what the page before had under way ends
        for log in ("browser", "performance"):
            browser.get_log(log)
        browser.get(address)
        self.wait_for_rows(4)

    def find(self, selector: str) -> Any:
        from selenium.webdriver.common.by import By

        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        script = "return document.querySelector(arguments[0])?.innerText ?? ''"
        return str(self.browser.execute_script(script, selector))

    def count(self, selector: str) -> int:
        script = "return document.querySelectorAll(arguments[0]).length"
        return int(self.browser.execute_script(script, selector))

    def wait(self, what: Any) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.browser, WAIT).until(lambda _: what())

    def wait_for_rows(self, n: int) -> None:
        """Wait until the comparison has `n` engines, all finished."""
        rows, waiting = "#comparison tbody tr", "#comparison tr.waiting"
        self.wait(lambda: self.count(rows) == n and not self.count(waiting))

    def wait_for_text(self, selector: str, text: str) -> None:
        self.wait(lambda: text in self.text(selector))

    def pick(self, group: str, value: str) -> None:
        """Click a radio button (by its value) or a checkbox (by its name)."""
        self.click(f"#{group} input[value='{value}'], #{group} input[name='{value}']")

    def upload(self, group: str, path: Path) -> None:
        self.wait(lambda: self.count(f"#{group} input[type=file]"))
        self.find(f"#{group} input[type=file]").send_keys(str(path))

    def picture(self) -> str:
        script = "return document.querySelector('#drawn img')?.src ?? ''"
        return str(self.browser.execute_script(script))

    def click(self, selector: str) -> None:
        self.browser.execute_script("arguments[0].click()", self.find(selector))


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Page]:
    """A test must cause no error in the console and no request to another machine."""
    opened = Page(browser, address)
    yield opened
    errors = [e for e in browser.get_log("browser") if e["level"] == "SEVERE"]
    assert errors == []
    requests = requested(browser.get_log("performance"))
    assert any(url.startswith(address) for url in requests)  # they are seen
    assert [url for url in requests if not is_local(url)] == []


def requested(log: list[dict[str, Any]]) -> list[str]:
    messages = [json.loads(entry["message"])["message"] for entry in log]
    return [
        m["params"]["request"]["url"]
        for m in messages
        if m["method"] == "Network.requestWillBeSent"
    ]


def is_local(url: str) -> bool:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme in ("blob", "chrome", "data") or parts.hostname == "127.0.0.1"


def test_opens_with_results(page: Page) -> None:
    assert page.browser.title == "jaxdelegate"
    assert page.count("#words table.scores tr") > 0
    assert page.picture().startswith(page.address)
    assert "All " in page.text("#report")
    assert "TFLite_Detection_PostProcess" in page.text("#report")
    engines = page.text("#comparison")
    for name in ("numpy reference", "stock LiteRT", "XLA float32", "XLA exact integers"):
        assert name in engines


@pytest.mark.parametrize("width", [pytest.param(1400, marks=pytest.mark.exhaustive), 800])
def test_everything_fits_into_the_window(page: Page, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    script = """return [...document.querySelectorAll('table, label, button, pre, img, header *')]
        .map(e => e.getBoundingClientRect()).filter(r => r.width).map(r => [r.left, r.right])"""
    try:
        edges = page.browser.execute_script(script)
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert len(edges) > 20
    assert min(left for left, _ in edges) >= 0
    assert max(right for _, right in edges) <= width


@pytest.mark.parametrize(
    ("task", "word"),
    [
        pytest.param("classification", "circle", marks=pytest.mark.exhaustive),
        pytest.param("segmentation", "background", marks=pytest.mark.exhaustive),
        ("pose", "left knee"),
    ],
)
def test_switching_tasks(page: Page, task: str, word: str) -> None:
    before = page.picture()
    page.pick("network", task)
    page.wait_for_text("#words", word)
    page.wait(lambda: page.picture() not in ("", before))
    page.wait_for_rows(4)


@pytest.mark.exhaustive
def test_another_picture(page: Page) -> None:
    before = page.picture()
    page.click("#another")
    page.wait(lambda: page.picture() not in ("", before))
    assert page.find("#seed input").get_property("value") == "1"


@pytest.mark.exhaustive
def test_switching_engines(page: Page) -> None:
    page.pick("shown", "numpy reference")
    page.wait_for_text("#report", "The numpy reference runs every operator.")
    page.pick("engines", "XLA exact integers")  # off
    page.pick("engines", "XLA bfloat16")
    page.pick("engines", "XLA float16")
    page.click("#run")
    page.wait_for_rows(5)
    names = page.text("#comparison")
    assert "XLA float16" in names
    assert "XLA bfloat16" in names
    assert "XLA exact integers" not in names
    page.pick("shown", "XLA float16")
    page.wait_for_text("#report", "computes in float32")


@pytest.mark.exhaustive
def test_an_image_file(page: Page, tmp_path: Path) -> None:
    from PIL import Image

    path = tmp_path / "given.png"
    Image.fromarray(TASKS["detection"].picture(5)).resize((300, 200)).save(path)
    page.pick("source", "Image")
    page.wait_for_text("#problem", "Choose an image")
    page.upload("image", path)
    page.wait(lambda: page.picture() and page.count("#comparison tbody tr"))
    page.wait_for_rows(4)
    script = (
        "const i = document.querySelector('#drawn img'); return i.naturalWidth / i.naturalHeight"
    )
    assert page.browser.execute_script(script) == pytest.approx(1.5, abs=0.01)


def test_tflite_files(page: Page, tmp_path: Path) -> None:
    damaged, own = tmp_path / "damaged.tflite", tmp_path / "own.tflite"
    damaged.write_bytes(small_classifier()[:3000])
    own.write_bytes(small_classifier())
    page.pick("network", ".tflite file")
    page.wait_for_text("#problem", "Choose a .tflite file.")
    page.upload("file", damaged)
    page.wait_for_text("#problem", "damaged.tflite: ")
    assert "the file is truncated" in page.text("#problem")
    assert "Traceback" not in page.text("body")
    page.click("#file button[aria-label*='lear']")
    page.upload("file", own)
    page.wait_for_text("#words", "probabilities")
    page.wait_for_rows(4)
    assert "float32 [1, 32]" in page.text("#words")


@pytest.mark.exhaustive
def test_names_in_a_file_are_text(page: Page, tmp_path: Path) -> None:
    names = ["${document.title='1'}", "{{document.title='2'}}", '<img src=x onerror="alert(3)">']
    path = tmp_path / "names.tflite"
    path.write_bytes(with_outputs(names))
    page.pick("network", ".tflite file")
    page.upload("file", path)
    page.wait_for_rows(4)
    page.wait(lambda: page.count("#words table.outputs tbody tr") == 3)
    for name in names:
        assert name in page.text("#words")
    assert page.browser.title == "jaxdelegate"


def with_outputs(names: list[str]) -> bytes:
    builder = ModelBuilder("names")
    x = builder.input((1, 4), np.float32, "x")
    outputs = [builder.tensor((1, 4), np.float32, name) for name in names]
    for output in outputs:
        builder.operator("ABS", [x], [output])
    builder.outputs(*outputs)
    return builder.build()


@pytest.mark.exhaustive
def test_a_video(page: Page, tmp_path: Path) -> None:
    pytest.importorskip("av", reason="needs PyAV")
    from web_demo import video

    path = tmp_path / "given.mp4"
    video.write(path, (TASKS["detection"].picture(seed) for seed in range(5)))
    page.pick("source", "Video")
    page.upload("video", path)
    script = "return document.querySelector('#annotated video')?.videoWidth ?? 0"
    page.wait(lambda: page.browser.execute_script(script) == 256)


@pytest.mark.exhaustive
def test_the_live_camera(page: Page) -> None:
    page.pick("source", "Live camera")
    page.wait_for_text("#camera", "Click to Access Webcam")
    page.browser.execute_script(
        "[...document.querySelectorAll('#camera button')].find("
        "b => b.innerText.includes('Click to Access')).click()"
    )
    page.wait(lambda: page.count("#camera button.capture-button"))
    page.click("#camera button.capture-button")
    page.wait_for_text("#words", "ms for this frame")
    first = page.picture()
    page.wait(lambda: page.picture() != first)  # the next frame
    page.pick("shown", "numpy reference")
    page.wait_for_text("#words", "numpy reference: ")
    page.pick("network", "pose")
    page.wait_for_text("#words", "left knee")
    page.pick("engines", "XLA exact integers")  # off
    page.click("#run")  # while the camera runs
    page.wait_for_rows(3)
    page.click("#camera button.capture-button")


def test_ctrl_c_ends_it_and_leaves_no_files(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path))
        with serving("--host=127.0.0.1") as (_, process):
            assert list(tmp_path.glob("jaxdelegate-demo-*"))
            process.send_signal(signal.SIGINT)
            printed = process.communicate(timeout=WAIT)[0].decode()
    assert process.returncode in (0, 130)  # 130: it was not quite up
    assert "Traceback" not in printed
    assert not list(tmp_path.glob("jaxdelegate-demo-*"))
